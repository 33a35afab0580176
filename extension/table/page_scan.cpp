#include "extension/table/heap_page.h"
#include "extension/table/page_scan.h"

extern "C" {
#include "access/heapam.h"
#include "access/htup_details.h"
#include "access/xact.h"
#include "catalog/pg_am.h"
#include "miscadmin.h"
#include "storage/bufmgr.h"
#include "storage/procarray.h"
}

namespace pgwarp {

namespace {

enum class Verdict { indexed, ignored, unsure };

Verdict judge(HeapTuple tuple, TransactionId oldest, Buffer buffer) {
    switch (HeapTupleSatisfiesVacuum(tuple, oldest, buffer)) {
        case HEAPTUPLE_LIVE:
            return Verdict::indexed;
        case HEAPTUPLE_DEAD:
            return Verdict::ignored;
        case HEAPTUPLE_INSERT_IN_PROGRESS:
            // Visible once this transaction commits.
            if (TransactionIdIsCurrentTransactionId(HeapTupleHeaderGetXmin(tuple->t_data)))
                return Verdict::indexed;
            return Verdict::unsure;
        default:
            return Verdict::unsure;
    }
}

struct PageRows {
    int count;
    HeapTupleData tuples[MaxHeapTuplesPerPage];
    ItemPointerData places[MaxHeapTuplesPerPage];  // TIDs for the index: roots of HOT chains
};

// False: visibility needs PostgreSQL's own scan.
bool collect_rows(Relation heap, BlockNumber block, Buffer buffer, TransactionId oldest,
                  PageRows* rows) {
    const Page page = BufferGetPage(buffer);
    rows->count = 0;
    bool chains = false;
    for (OffsetNumber i = FirstOffsetNumber; i <= PageGetMaxOffsetNumber(page); ++i) {
        if (!ItemIdIsNormal(PageGetItemId(page, i))) continue;
        HeapTuple tuple = &rows->tuples[rows->count];
        *tuple = tuple_on_page(heap, page, block, i);
        const Verdict verdict = judge(tuple, oldest, buffer);
        if (verdict == Verdict::unsure) return false;
        if (verdict == Verdict::ignored) continue;
        chains |= HeapTupleIsHeapOnly(tuple);
        rows->places[rows->count++] = tuple->t_self;
    }
    if (!chains) return true;
    // The index entry of a HOT chain points to its root.
    OffsetNumber roots[MaxHeapTuplesPerPage];
    heap_get_root_tuples(page, roots);
    for (int i = 0; i < rows->count; ++i) {
        if (!HeapTupleIsHeapOnly(&rows->tuples[i])) continue;
        const OffsetNumber root = roots[ItemPointerGetOffsetNumber(&rows->places[i]) - 1];
        // A broken chain: PostgreSQL's scan reports it.
        if (!OffsetNumberIsValid(root)) return false;
        ItemPointerSetOffsetNumber(&rows->places[i], root);
    }
    return true;
}

}  // namespace

bool may_scan_pages(Relation heap, const IndexInfo* info) {
    // From PostgreSQL 17 on, its own scans prefetch.
    return PG_VERSION_NUM < 170000 && heap->rd_rel->relam == HEAP_TABLE_AM_OID &&
           !info->ii_Concurrent && info->ii_Predicate == NIL && info->ii_Expressions == NIL;
}

double scan_pages(Relation heap, Relation index, IndexInfo* info, ParallelTableScanDesc parallel,
                  IndexBuildCallback callback, void* state) {
    auto* shared = reinterpret_cast<ParallelBlockTableScanDesc>(parallel);
    ParallelBlockTableScanWorkerData own = {};
    const TransactionId oldest = GetOldestNonRemovableTransactionId(heap);
    const TupleDesc descriptor = RelationGetDescr(heap);
    BufferAccessStrategy strategy = scan_strategy(heap);
    PageRows* rows = static_cast<PageRows*>(palloc(sizeof(PageRows)));
    double found = 0;
    uint32 blocks = 0;
    uint32 left = 0;
    // Consecutive blocks left to PostgreSQL's scan: few enough to be still in shared buffers then.
    constexpr BlockNumber most_left = 16;
    BlockNumber left_first = 0;
    BlockNumber left_count = 0;
    const auto scan_left = [&] {
        if (left_count > 0)
            found += table_index_build_range_scan(heap, index, info, false, false, false,
                                                  left_first, left_count, callback, state, nullptr);
        left += left_count;
        left_count = 0;
    };
    compat_start_parallel(heap, &own, shared);
    while (true) {
        const BlockNumber block = table_block_parallelscan_nextpage(heap, &own, shared);
        if (block == InvalidBlockNumber) break;
        CHECK_FOR_INTERRUPTS();
        ++blocks;
        const Buffer buffer = ReadBufferExtended(heap, MAIN_FORKNUM, block, RBM_NORMAL, strategy);
        LockBuffer(buffer, BUFFER_LOCK_SHARE);
        const bool sure = collect_rows(heap, block, buffer, oldest, rows);
        LockBuffer(buffer, BUFFER_LOCK_UNLOCK);
        // The pin keeps rows in place: pruning needs a cleanup lock.
        for (int i = 0; sure && i < rows->count; ++i) {
            Datum values[INDEX_MAX_KEYS];
            bool nulls[INDEX_MAX_KEYS];
            for (int j = 0; j < info->ii_NumIndexAttrs; ++j)
                values[j] = heap_getattr(&rows->tuples[i], info->ii_IndexAttrNumbers[j], descriptor,
                                         &nulls[j]);
            callback(index, &rows->places[i], values, nulls, true, state);
        }
        ReleaseBuffer(buffer);
        if (sure) {
            found += rows->count;
            continue;
        }
        if (block != left_first + left_count || left_count == most_left) scan_left();
        if (left_count == 0) left_first = block;
        ++left_count;
    }
    scan_left();
    ereport(DEBUG1, (errmsg_internal("%u of %u blocks were left to a scan", left, blocks)));
    pfree(rows);
    if (strategy) FreeAccessStrategy(strategy);
    return found;
}

}  // namespace pgwarp
