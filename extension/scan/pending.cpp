// Lists without codes in a scan: the pending list, and the list of rows without a direction, which
// are read at the end.
//
// Entries of the pending list have no codes, so a scan ranks all of its rows by exact distance at
// the beginning.
//
// The scan first copies the TIDs (entries.h). Then it reads the rows, with no page locked.

#include <algorithm>

#include "extension/index/attributes.h"
#include "extension/index/lists.h"
#include "extension/index/place.h"
#include "extension/scan/row_walk.h"
#include "extension/scan/state.h"
#include "extension/index/tid.h"

namespace pgwarp {

namespace {

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
        const RowSet* rows = checks ? s->conditions.rows : nullptr;
        if (rows && !has_row(*rows, number_tid(tid))) return;
        if (!find_row(reader_of(s), number_tid(tid)) || (checks && !row_passes(s))) return;
        const StoredVector row = read_found_row(reader_of(s));
        if (!row) return;
        const double distance = row_distance(s, row);
        if (is_within(s->bound, distance)) sink.put(sink.state, distance, tid);
    });
}

bool rank_pending(IndexScanDesc scan, ScanState* s) {
    if (!read_pending(scan->indexRelation, s->meta, scan->xs_snapshot, scan_memory() / 8,
                      &s->pending.entries))
        return false;
    s->pending.done = !s->pending.entries.tids;
    if (s->pending.done) return true;
    s->pending.rows = open_candidate_order(scan_memory() / 16);
    rank_tids(s, s->pending.entries.tids, true, {put_pending, s});
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
    TidSet* tids = read_list(scan->indexRelation, s->meta, scan->xs_snapshot,
                             undirected_list(s->meta), scan_memory() / 8);
    const bool moved = have_moved(scan->indexRelation, s->meta, s->pending.entries);
    struct Sink {
        ScanState* scan;
        bool moved;
    } sink{s, moved};
    rank_tids(s, tids, true,
              {[](void* state, double distance, uint64 tid) {
                   const Sink* to = static_cast<Sink*>(state);
                   bool known = false;
                   if (to->moved) find_tids(to->scan->pending.entries.tids, &tid, 1, &known);
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

}  // namespace pgwarp
