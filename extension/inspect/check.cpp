// ivfpq_check: reads a whole index and reports what is wrong with it.
//
// The lock on the table excludes VACUUM, but not reads and writes: entries that VACUUM removes
// or moves would look like faults, while concurrent inserts are allowed for. A list is read up to
// the tail that its place named. Up to there the chain does not change, except that entries are
// added to its last page. Pages are copied, so that no page is locked while it is checked.
//
// On a standby nothing excludes a VACUUM of the primary. There the check holds a lock on a list's
// place while it reads the list's pages, and what moves from one list to another is no fault: a
// page may be seen in both lists, and so may a TID that was reused for another row.

#include <algorithm>
#include <cstring>

#include "extension/index/argument.h"
#include "extension/index/lists.h"
#include "extension/index/model.h"
#include "extension/index/page.h"
#include "extension/index/place.h"

extern "C" {
#include "access/relscan.h"
#include "access/tableam.h"
#include "access/transam.h"
#include "access/xact.h"
#include "access/xlog.h"
#include "catalog/index.h"
#include "catalog/pg_operator_d.h"
#include "catalog/pg_type_d.h"
#include "funcapi.h"
#include "miscadmin.h"
#include "utils/builtins.h"
#include "utils/snapmgr.h"
#include "utils/tuplesort.h"
}

namespace pgwarp {

namespace {

struct Check {
    Relation heap;
    Relation index;
    MetaPage meta;
    BlockNumber blocks;
    BlockNumber heap_blocks;
    bool recovery;
    uint8* seen;           // a bit for each block that some structure holds
    Tuplesortstate* tids;  // all of the index
    ReturnSetInfo* out;
    int64 problems;
};

pg_attribute_printf(3, 4) void problem(Check* check, BlockNumber block, const char* format, ...) {
    char text[512];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof(text), format, arguments);
    va_end(arguments);
    Datum values[2] = {Int64GetDatum(block), CStringGetTextDatum(text)};
    bool nulls[2] = {!BlockNumberIsValid(block), false};
    tuplestore_putvalues(check->out->setResult, check->out->setDesc, values, nulls);
    ++check->problems;
}

// Copies a page for checking. A page that cannot be what it should becomes a problem, not an error;
// returns false then.
bool copy_to_check(Check* check, BlockNumber block, PageKind kind, const char* holder,
                   PGAlignedBlock* copy) {
    if (block >= check->blocks) check->blocks = RelationGetNumberOfBlocks(check->index);
    if (block >= check->blocks) {
        problem(check, block, "%s points behind the end of the index", holder);
        return false;
    }
    const Buffer buffer = ReadBuffer(check->index, block);
    LockBuffer(buffer, BUFFER_LOCK_SHARE);
    memcpy(copy->data, BufferGetPage(buffer), BLCKSZ);
    UnlockReleaseBuffer(buffer);
    Page page = copy->data;
    const char* fault = nullptr;
    if (PageIsNew(page))
        fault = "is empty";
    else if (PageGetSpecialSize(page) != MAXALIGN(sizeof(PageTail)))
        fault = "is no page of an ivfpq index";
    else if (page_tail(page)->kind != kind)
        fault = "is of another kind";
    if (fault) problem(check, block, "page of %s %s", holder, fault);
    return fault == nullptr;
}

// Returns false and adds a problem where the block was reached before.
bool mark_seen(Check* check, BlockNumber block, BlockNumber size, const char* holder) {
    // The bitmap covers the pages that the index had when the check began, not those added since.
    if (block >= size || check->recovery) return true;
    uint8* byte = &check->seen[block / 8];
    const uint8 bit = static_cast<uint8>(1 << (block % 8));
    if (*byte & bit) {
        problem(check, block, "page of %s belongs to another structure too", holder);
        return false;
    }
    *byte |= bit;
    return true;
}

void check_model(Check* check, BlockNumber size) {
    const MetaPage& meta = check->meta;
    const auto check_run = [&](BlockNumber first, BlockNumber pages, PageKind kind,
                               const char* holder) {
        for (BlockNumber i = 0; i < pages; ++i) {
            CHECK_FOR_INTERRUPTS();
            mark_seen(check, first + i, size, holder);
            PGAlignedBlock copy;
            copy_to_check(check, first + i, kind, holder, &copy);
        }
    };
    check_run(meta.centroids, centroid_pages(meta), PageKind::centroids, "the centroids");
    check_run(meta.codebook, codebook_pages(meta), PageKind::codebook, "the codebook");
    check_run(meta.rotation, rotation_pages(meta), PageKind::rotation, "the rotation");
    check_run(meta.directory, directory_pages(meta.lists), PageKind::directory, "the directory");
}

// Checks one page's entries and puts its TIDs into the sort.
void check_entries(Check* check, BlockNumber block, Page page, const EntryLayout& layout) {
    const ItemPointerData* tids = page_tids(page, layout);
    for (uint32 i = 0; i < page_tail(page)->count; ++i) {
        const BlockNumber heap_block = ItemPointerGetBlockNumberNoCheck(&tids[i]);
        const OffsetNumber offset = ItemPointerGetOffsetNumberNoCheck(&tids[i]);
        // Rows inserted since may lie beyond the size of the table that was read before.
        if (heap_block >= check->heap_blocks)
            check->heap_blocks = RelationGetNumberOfBlocks(check->heap);
        if (offset == InvalidOffsetNumber || heap_block >= check->heap_blocks)
            problem(check, block, "entry %u has impossible TID (%u,%u)", i, heap_block, offset);
        tuplesort_putdatum(check->tids, Int64GetDatum(static_cast<int64>(tid_number(tids[i]))),
                           false);
    }
}

void check_list(Check* check, uint32 list, BlockNumber size) {
    const EntryLayout layout = layout_of(check->meta, list);
    char holder[64];
    if (list == pending_list)
        strlcpy(holder, "the pending list", sizeof(holder));
    else
        snprintf(holder, sizeof(holder), "list %u", list);

    const Buffer place_buffer = lock_place(check->index, check->meta, list);
    const ListPlace place = place_of(place_buffer, check->meta, list);
    if (!check->recovery) UnlockReleaseBuffer(place_buffer);
    BlockNumber prev = InvalidBlockNumber;
    BlockNumber pages = 0;
    for (BlockNumber block = place.head; BlockNumberIsValid(block);) {
        CHECK_FOR_INTERRUPTS();
        if (!mark_seen(check, block, size, holder)) break;
        PGAlignedBlock copy;
        if (!copy_to_check(check, block, PageKind::list, holder, &copy)) break;
        Page page = copy.data;
        const PageTail tail = *page_tail(page);
        if (tail.list != list) problem(check, block, "page of %s names list %u", holder, tail.list);
        if (tail.prev != prev)
            problem(check, block, "page of %s names %u as the page before it, not %u", holder,
                    tail.prev, prev);
        if (tail.count > layout.capacity)
            problem(check, block, "page of %s claims %u entries, it has room for %u", holder,
                    tail.count, layout.capacity);
        else
            check_entries(check, block, page, layout);
        if (BlockNumberIsValid(tail.next) && tail.count != layout.capacity)
            problem(check, block, "page of %s is not full, and not the last", holder);
        prev = block;
        // Pages behind that tail were added since.
        block = block == place.tail ? InvalidBlockNumber : tail.next;
        if (++pages > place.pages) {
            problem(check, prev, "%s has more pages than the %u it claims", holder, place.pages);
            break;
        }
    }
    if (pages < place.pages)
        problem(check, prev, "%s claims %u pages, %u were found", holder, place.pages, pages);
    if (prev != place.tail)
        problem(check, place.tail, "%s ends with page %u, not with its tail", holder, prev);
    if (check->recovery) UnlockReleaseBuffer(place_buffer);
}

void check_free_list(Check* check, BlockNumber size) {
    const Buffer meta_buffer =
        read_page(check->index, meta_block, PageKind::meta, BUFFER_LOCK_SHARE);
    const BlockNumber head = page_meta(BufferGetPage(meta_buffer))->free_head;
    const uint32 claimed = page_meta(BufferGetPage(meta_buffer))->free_pages;
    uint32 found = 0;
    for (BlockNumber block = head; BlockNumberIsValid(block) && found <= claimed; ++found) {
        if (!mark_seen(check, block, size, "the free list")) break;
        PGAlignedBlock copy;
        if (!copy_to_check(check, block, PageKind::free, "the free list", &copy)) break;
        block = page_tail(copy.data)->next;
    }
    if (found != claimed)
        problem(check, head, "the free list claims %u pages, %u were found", claimed, found);
    UnlockReleaseBuffer(meta_buffer);
}

bool next_tid(Tuplesortstate* sort, uint64* tid) {
    Datum value;
    bool is_null;
    if (!compat_get_datum(sort, &value, &is_null)) return false;
    *tid = static_cast<uint64>(DatumGetInt64(value));
    return true;
}

Tuplesortstate* begin_tid_sort() {
    return compat_begin_datum_sort(INT8OID, Int8LessOperator, maintenance_work_mem);
}

void collect_heap_tid(Relation, ItemPointer tid, Datum*, bool* nulls, bool, void* sort) {
    if (!nulls[0])
        tuplesort_putdatum(static_cast<Tuplesortstate*>(sort),
                           Int64GetDatum(static_cast<int64>(tid_number(*tid))), false);
}

// An index may lack rows of broken HOT chains (indcheckxmin), which only snapshots older than the
// index can see.
void check_snapshot(Relation index, Snapshot snapshot) {
    if (IsolationUsesXactSnapshot() && index->rd_index->indcheckxmin &&
        !TransactionIdPrecedes(HeapTupleHeaderGetXmin(index->rd_indextuple->t_data),
                               snapshot->xmin))
        ereport(ERROR, (errcode(ERRCODE_T_R_SERIALIZATION_FAILURE),
                        errmsg("index \"%s\" cannot be checked with a snapshot older than it",
                               RelationGetRelationName(index)),
                        errhint("Begin a new transaction.")));
}

// The TIDs of all rows that the snapshot sees, sorted. It was taken before the index was read, so
// the index must have all of them.
Tuplesortstate* collect_heap_tids(const OpenIndex& open, Snapshot snapshot) {
    Tuplesortstate* sort = begin_tid_sort();
    IndexInfo* info = BuildIndexInfo(open.index);
    // As in CREATE INDEX CONCURRENTLY, the scan returns the rows that the snapshot sees.
    info->ii_Concurrent = true;
    TableScanDesc scan = table_beginscan_strat(open.heap, snapshot, 0, nullptr, true, true);
    table_index_build_scan(open.heap, open.index, info, true, false, collect_heap_tid, sort, scan);
    tuplesort_performsort(sort);
    return sort;
}

void report_missing(Check* check, uint64 tid) {
    problem(check, InvalidBlockNumber, "row (%u,%u) is not in the index",
            static_cast<uint32>(tid >> 16), static_cast<uint32>(tid & 0xffff));
}

// Merges both sorted streams: a TID twice in the index, or in the table only, is a problem.
void check_tids(Check* check, Tuplesortstate* heap_tids) {
    uint64 row = 0;
    bool more_rows = heap_tids && next_tid(heap_tids, &row);
    uint64 previous = 0;
    uint64 tid;
    while (next_tid(check->tids, &tid)) {
        CHECK_FOR_INTERRUPTS();
        if (tid == previous && !check->recovery)
            problem(check, InvalidBlockNumber, "row (%u,%u) is in the index twice",
                    static_cast<uint32>(tid >> 16), static_cast<uint32>(tid & 0xffff));
        previous = tid;
        while (more_rows && row < tid) {
            report_missing(check, row);
            more_rows = next_tid(heap_tids, &row);
        }
        if (more_rows && row == tid) more_rows = next_tid(heap_tids, &row);
    }
    for (; more_rows; more_rows = next_tid(heap_tids, &row)) report_missing(check, row);
}

}  // namespace

}  // namespace pgwarp

using namespace pgwarp;

PGWARP_FUNCTION(ivfpq_check) {
    compat_init_materialized(fcinfo);
    const bool recovery = RecoveryInProgress();
    const OpenIndex open = open_index(
        PG_GETARG_OID(0), recovery ? AccessShareLock : ShareUpdateExclusiveLock, Purpose::maintain);
    const bool heap_all_indexed = PG_GETARG_BOOL(1);

    Check check = {};
    check.recovery = recovery;
    check.heap = open.heap;
    check.index = open.index;
    check.out = reinterpret_cast<ReturnSetInfo*>(fcinfo->resultinfo);
    Snapshot snapshot = RegisterSnapshot(GetTransactionSnapshot());
    if (heap_all_indexed) check_snapshot(open.index, snapshot);
    check.meta = read_meta(open.index);
    check.blocks = RelationGetNumberOfBlocks(open.index);
    const BlockNumber size = check.blocks;
    check.seen = static_cast<uint8*>(MemoryContextAllocExtended(CurrentMemoryContext, size / 8 + 1,
                                                                MCXT_ALLOC_HUGE | MCXT_ALLOC_ZERO));
    check.tids = begin_tid_sort();
    mark_seen(&check, meta_block, size, "the metapage");
    if (check.meta.lists > 0) check_model(&check, size);
    check_list(&check, pending_list, size);
    for (uint32 list = 0; list < check.meta.lists; ++list) {
        CHECK_FOR_INTERRUPTS();
        check_list(&check, list, size);
    }
    check_free_list(&check, size);
    if (read_meta(open.index).build_id != check.meta.build_id)
        ereport(ERROR, (errcode(ERRCODE_T_R_SERIALIZATION_FAILURE),
                        errmsg("index \"%s\" was trained while it was checked",
                               RelationGetRelationName(open.index)),
                        errhint("Check it again.")));
    tuplesort_performsort(check.tids);
    Tuplesortstate* heap_tids = heap_all_indexed ? collect_heap_tids(open, snapshot) : nullptr;
    check_tids(&check, heap_tids);
    tuplesort_end(check.tids);
    if (heap_tids) tuplesort_end(heap_tids);
    UnregisterSnapshot(snapshot);
    close_index(open);
    return Datum{0};
}
