#include <algorithm>
#include <utility>

#include "extension/table/block_sample.h"
#include "extension/table/heap_page.h"

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

struct BlockSampler {
    Relation heap;
    Relation index;
    IndexInfo* info;
    bool by_page;
    AttrNumber attribute;
    TransactionId oldest;
    BufferAccessStrategy strategy;
};

BlockSampler* open_block_sampler(Relation heap, Relation index, IndexInfo* info) {
    BlockSampler* sampler = static_cast<BlockSampler*>(palloc0(sizeof(BlockSampler)));
    sampler->heap = heap;
    sampler->index = index;
    sampler->info = info;
    sampler->attribute = info->ii_IndexAttrNumbers[0];
    sampler->by_page = heap->rd_rel->relam == HEAP_TABLE_AM_OID && sampler->attribute > 0 &&
                       info->ii_Predicate == NIL;
    if (!sampler->by_page) return sampler;
    sampler->oldest = GetOldestNonRemovableTransactionId(heap);
    sampler->strategy = scan_strategy(heap);
    return sampler;
}

namespace {

bool is_wanted(HeapTuple tuple, TransactionId oldest, Buffer buffer) {
    switch (HeapTupleSatisfiesVacuum(tuple, oldest, buffer)) {
        case HEAPTUPLE_LIVE:
            return true;
        case HEAPTUPLE_INSERT_IN_PROGRESS:
            return TransactionIdIsCurrentTransactionId(HeapTupleHeaderGetXmin(tuple->t_data));
        case HEAPTUPLE_DELETE_IN_PROGRESS:
            return !TransactionIdIsCurrentTransactionId(HeapTupleHeaderGetUpdateXid(tuple->t_data));
        default:
            return false;
    }
}

// How many line pointers to look at, so that each has the probability `part`.
int draw_count(int there, double part, Random* random) {
    const double mean = there * part;
    const int whole = static_cast<int>(mean);
    return std::min(there, whole + (random->uniform() < mean - whole));
}

void sample_page(BlockSampler* sampler, BlockNumber block, double part, Random* random,
                 IndexBuildCallback callback, void* state) {
    HeapTupleData tuples[MaxHeapTuplesPerPage];
    OffsetNumber roots[MaxHeapTuplesPerPage];
    OffsetNumber offsets[MaxHeapTuplesPerPage];
    int there = 0;
    int count = 0;
    const Buffer buffer =
        ReadBufferExtended(sampler->heap, MAIN_FORKNUM, block, RBM_NORMAL, sampler->strategy);
    LockBuffer(buffer, BUFFER_LOCK_SHARE);
    const Page page = BufferGetPage(buffer);
    bool chains = false;
    for (OffsetNumber i = FirstOffsetNumber; i <= PageGetMaxOffsetNumber(page); ++i)
        if (ItemIdIsNormal(PageGetItemId(page, i))) offsets[there++] = i;
    const int drawn = part < 1 ? draw_count(there, part, random) : there;
    for (int i = 0; i < drawn; ++i) {
        if (drawn < there)
            std::swap(offsets[i], offsets[i + static_cast<int>(random->below(there - i))]);
        HeapTuple tuple = &tuples[count];
        *tuple = tuple_on_page(sampler->heap, page, block, offsets[i]);
        if (!is_wanted(tuple, sampler->oldest, buffer)) continue;
        chains |= HeapTupleIsHeapOnly(tuple);
        ++count;
    }
    // The index entry of a HOT chain points to its root.
    if (chains) heap_get_root_tuples(page, roots);
    LockBuffer(buffer, BUFFER_LOCK_UNLOCK);
    // The pin keeps rows in place: pruning needs a cleanup lock.
    for (int i = 0; i < count; ++i) {
        HeapTuple tuple = &tuples[i];
        ItemPointerData tid = tuple->t_self;
        if (HeapTupleIsHeapOnly(tuple)) {
            const OffsetNumber root = roots[ItemPointerGetOffsetNumber(&tid) - 1];
            if (!OffsetNumberIsValid(root)) continue;
            ItemPointerSetOffsetNumber(&tid, root);
        }
        bool is_null;
        Datum value =
            heap_getattr(tuple, sampler->attribute, RelationGetDescr(sampler->heap), &is_null);
        callback(sampler->index, &tid, &value, &is_null, true, state);
    }
    ReleaseBuffer(buffer);
}

}  // namespace

void sample_blocks(BlockSampler* sampler, BlockNumber first, BlockNumber count,
                   IndexBuildCallback callback, void* state) {
    if (!sampler->by_page) {
        // A concurrent build sees the rows of an MVCC snapshot, not of SnapshotAny.
        table_index_build_range_scan(sampler->heap, sampler->index, sampler->info, false,
                                     !sampler->info->ii_Concurrent, false, first, count, callback,
                                     state, nullptr);
        return;
    }
    for (BlockNumber block = first; block < first + count; ++block) {
        CHECK_FOR_INTERRUPTS();
        sample_page(sampler, block, 1, nullptr, callback, state);
    }
}

void sample_some_rows(BlockSampler* sampler, BlockNumber block, double part, Random* random,
                      IndexBuildCallback callback, void* state) {
    CHECK_FOR_INTERRUPTS();
    if (sampler->by_page)
        sample_page(sampler, block, part, random, callback, state);
    else
        sample_blocks(sampler, block, 1, callback, state);
}

void close_block_sampler(BlockSampler* sampler) {
    if (sampler->strategy) FreeAccessStrategy(sampler->strategy);
    pfree(sampler);
}

}  // namespace pgwarp
