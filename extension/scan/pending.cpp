// Lists without codes in a scan: the pending list, and the list of rows without a direction, which
// are read at the end.
//
// Entries of the pending list have no codes, so a scan ranks all of its rows by exact distance at
// the beginning.
//
// The scan first copies the TIDs. This walk is short, so VACUUM seldom changes the list during it.
// Then the scan reads the rows, with no page locked. A list read after the snapshot was taken has
// all entries that the snapshot sees, so the scan reads the list once. An untrained index has all
// its rows in the pending list, and it does not matter to a scan of them whether VACUUM trains the
// index meanwhile. In a trained index, VACUUM may move an entry to another list after the scan read
// it here, and the scan would find the entry there again. The generation of the pending list tells
// whether an entry has moved.

#include <algorithm>

#include "extension/index/attributes.h"
#include "extension/index/lists.h"
#include "extension/index/page.h"
#include "extension/index/place.h"
#include "extension/scan/row_walk.h"
#include "extension/scan/state.h"
#include "extension/index/tid.h"

namespace pgwarp {

namespace {

struct TidCopy {
    TidSet* set;
    uint32 count;
    uint64 tids[max_page_entries];  // of one page
};

void copy_page(void* state, uint32, Page page, const EntryLayout& layout) {
    auto* copy = static_cast<TidCopy*>(state);
    const ItemPointerData* tids = page_tids(page, layout);
    copy->count = page_tail(page)->count;
    for (uint32 i = 0; i < copy->count; ++i) copy->tids[i] = tid_number(tids[i]);
}

// Runs without the page's lock, because put_tid() may write to a file.
void keep_page(void* state) {
    const auto* copy = static_cast<TidCopy*>(state);
    for (uint32 i = 0; i < copy->count; ++i) put_tid(copy->set, copy->tids[i]);
}

void forget_pages(void* state) {
    auto* copy = static_cast<TidCopy*>(state);
    close_tid_set(copy->set);
    copy->set = open_tid_set(scan_memory() / 8);
}

// The TIDs of a list without codes.
TidSet* copy_tids(IndexScanDesc scan, const MetaPage& meta, uint32 list) {
    auto* copy = static_cast<TidCopy*>(palloc(sizeof(TidCopy)));
    copy->set = open_tid_set(scan_memory() / 8);
    walk_lists(scan->indexRelation, meta, &list, 1, {copy_page, copy, keep_page, forget_pages});
    check_snapshot(scan->indexRelation, meta, &list, 1, scan->xs_snapshot);
    TidSet* set = copy->set;
    pfree(copy);
    return set;
}

// Whether the row that was found last passes the conditions. Entries of the pending list have no
// attributes: they are those of the row. Checked before the plan's filters, which must not see rows
// that the conditions exclude: a condition may be a policy, or keep a filter from an error.
bool row_passes(ScanState* s) {
    if (s->conditions.count == 0) return true;
    uint8 packed[max_attributes * (sizeof(uint64) + 1)];
    const MemoryContext before = MemoryContextSwitchTo(row_context(reader_of(s)));
    const IndexValues row = index_values(reader_of(s));
    pack_attributes(*s->conditions.attributes, row.values, row.nulls, packed);
    MemoryContextSwitchTo(before);
    return passes({&s->conditions.attributes->layout, packed, 1, 1}, s->conditions.all(), 0);
}

void put_pending(void* state, double distance, uint64 tid) {
    put_candidate(static_cast<ScanState*>(state)->pending.rows, {distance, tid});
}

}  // namespace

Size rank_tids(ScanState* s, TidSet* tids, bool checks, const RowSink& sink) {
    return walk_rows(reader_of(s), tids, [&](uint64 tid) {
        if (!find_row(reader_of(s), number_tid(tid)) || (checks && !row_passes(s))) return;
        const StoredVector row = read_found_row(reader_of(s));
        if (!row) return;
        const double distance = row_distance(s, row);
        if (is_within(s->bound, distance)) sink.put(sink.state, distance, tid);
    });
}

bool read_pending(IndexScanDesc scan, ScanState* s) {
    Relation index = scan->indexRelation;
    if (s->pending.tids) close_tid_set(s->pending.tids);
    s->pending.tids = nullptr;
    s->pending.done = s->meta.pending.pages == 0 && !BlockNumberIsValid(s->meta.pending.head);
    const uint32 list = pending_list;
    if (s->pending.done && s->meta.pending.generation > 0)
        check_snapshot(index, s->meta, &list, 1, scan->xs_snapshot);
    // A pending list that is empty now has no entry that the snapshot sees.
    if (s->pending.done) return true;
    s->pending.generation = s->meta.pending.generation;
    s->pending.tids = copy_tids(scan, s->meta, list);
    if (s->meta.lists == 0 && read_meta(index).build_id != s->meta.build_id) return false;
    sort_tid_set(s->pending.tids);
    s->pending.rows = open_candidate_order(scan_memory() / 16);
    rank_tids(s, s->pending.tids, true, {put_pending, s});
    return true;
}

void gather_from_pending(ScanState* s) {
    Candidate part[256];
    // Their distances are known: of a partition's, all may be among the nearest.
    for (Size left = std::max(s->goal.candidates, s->goal.waiting); left > 0 && !s->pending.done;) {
        const Size count =
            take_candidates(s->pending.rows, part, std::min<Size>(left, lengthof(part)));
        for (Size i = 0; i < count; ++i) add_row(s, part[i].distance, part[i].id);
        s->progress.ranked += static_cast<int64>(count);
        left -= count;
        s->pending.done = count == 0;
    }
}

bool may_have_last_rows(Relation index, const ScanState* s) {
    if (s->last.rows) return true;
    // A bound on the distance excludes them.
    return s->meta.has_undirected_list && !s->bound.given && !s->last.read &&
           BlockNumberIsValid(read_place(index, s->meta, undirected_list(s->meta)).head);
}

namespace {

// Adds rows without a direction to those that wait. VACUUM may have moved some there since the scan
// read the pending list.
void read_undirected(IndexScanDesc scan, ScanState* s) {
    TidSet* tids = copy_tids(scan, s->meta, undirected_list(s->meta));
    sort_tid_set(tids);
    const bool moved = pending_has_moved(scan->indexRelation, s);
    struct Sink {
        ScanState* scan;
        bool moved;
    } sink{s, moved};
    rank_tids(s, tids, true,
              {[](void* state, double distance, uint64 tid) {
                   const Sink* to = static_cast<Sink*>(state);
                   bool known = false;
                   if (to->moved) find_tids(to->scan->pending.tids, &tid, 1, &known);
                   if (!known) add_row(to->scan, distance, tid);
               },
               &sink});
    close_tid_set(tids);
}

}  // namespace

void gather_last(IndexScanDesc scan, ScanState* s) {
    if (!s->last.read && s->meta.has_undirected_list && !s->bound.given) read_undirected(scan, s);
    s->last.read = true;
    s->last.wait = false;
    Candidate part[256];
    for (Size left = s->goal.candidates; left > 0 && !s->last.done;) {
        const Size count =
            s->last.rows ? take_candidates(s->last.rows, part, std::min<Size>(left, lengthof(part)))
                         : 0;
        for (Size i = 0; i < count; ++i) add_row(s, part[i].distance, part[i].id);
        s->progress.ranked += static_cast<int64>(count);
        left -= count;
        s->last.done = count == 0;
    }
}

bool pending_has_moved(Relation index, const ScanState* s) {
    return s->pending.tids && !is_empty(s->pending.tids) &&
           read_place(index, s->meta, pending_list).generation != s->pending.generation;
}

}  // namespace pgwarp
