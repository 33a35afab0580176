// What the processes of a build do once all rows are encoded: log list pages as the leader writes
// them, write WAL ahead of that, and measure the recall curve.
#pragma once

#include "extension/curve/curve.h"
#include "extension/curve/places.h"
#include "extension/create/wal_ahead.h"

extern "C" {
#include "storage/condition_variable.h"
#include "storage/spin.h"
}

namespace pgwarp {

// In dynamic shared memory.
struct SharedTasks {
    slock_t mutex;
    // Under `mutex`:
    // List pages, which any participant may take to log:
    BlockNumber next_page;
    BlockNumber pages_end;  // end of the pages written so far
    int logging;            // number of participants that are logging
    bool all_are_written;
    bool wants_wal_ahead;       // cleared by the worker that claims it
    WalAheadFigures wal_ahead;  // figures of that worker
    // Queries of the curve, once all pages are written. Participants look through lists for their
    // neighbors. The last one to finish makes the grid; then the queries can be measured.
    bool has_queries;  // SharedCurve lacks the places and the grid only
    uint32 next_list;
    int looking;  // number of participants that look through lists
    bool has_grid;
    uint32 next_query;

    ConditionVariable work_condition;  // there is more to do, or the end has come
};
void init_tasks(SharedTasks* tasks);

// What the leader gives for measuring the curve, and what the participants measure. Followed in
// memory by the TIDs of the queries, their neighbors, those of the first queries, which may have
// more of them, the queries, and the places of all neighbors.
struct SharedCurve {
    MetaPage meta;
    CurveGrid grid;
    uint32 count;  // 0: nothing to measure
    uint32 wide;   // of the first queries, those with most_curve_neighbors
    slock_t mutex;
    CurveTally tally;  // under `mutex`

    static Size most_neighbors(uint32 queries) {
        return Size{queries} * curve_neighbors + Size{curve_trial_queries} * most_curve_neighbors;
    }
    // Up to the places.
    static Size bytes_before(uint32 queries, uint32 dims) {
        return MAXALIGN(sizeof(SharedCurve) + Size{queries} * sizeof(uint64) +
                        most_neighbors(queries) * sizeof(Neighbor) +
                        Size{queries} * dims * sizeof(float));
    }
    static Size bytes(uint32 queries, uint32 dims, uint32 lists) {
        return bytes_before(queries, dims) + NeighborPlaces::bytes(most_neighbors(queries), lists);
    }
    uint64* query_tids() { return reinterpret_cast<uint64*>(this + 1); }
    Neighbor* neighbors() { return reinterpret_cast<Neighbor*>(query_tids() + count); }
    Neighbor* wide_neighbors() { return neighbors() + Size{count} * curve_neighbors; }
    float* vectors() {
        return reinterpret_cast<float*>(wide_neighbors() +
                                        Size{curve_trial_queries} * most_curve_neighbors);
    }
    NeighborPlaces places() {
        return {reinterpret_cast<char*>(this) + bytes_before(count, meta.code_dims),
                most_neighbors(count), meta.lists};
    }
    CurveQuery query(uint32 number) {
        CurveQuery query{query_tids()[number], vectors() + Size{number} * meta.code_dims,
                         neighbors() + Size{number} * curve_neighbors};
        if (number >= wide) return query;
        query.neighbors = wide_neighbors() + Size{number} * most_curve_neighbors;
        query.room = most_curve_neighbors;
        return query;
    }
    uint32 trials() const { return Min(count, curve_trial_queries); }
};

void init_curve(SharedCurve* curve);

// Does tasks until none is left or will come. `pages_first`: prefers logging pages to measuring
// queries; half of the workers prefer the opposite.
void do_tasks(Relation index, SharedTasks* tasks, SharedCurve* curve, bool pages_first);

// --- for the leader

// List pages from `first` on will be written; `write_ahead`: one worker writes WAL meanwhile.
void begin_pages(SharedTasks* tasks, BlockNumber first, bool write_ahead);
// The callback of a PageListener, whose state is the SharedTasks.
void note_written_pages(void* tasks, BlockNumber end);
void note_end_of_pages(SharedTasks* tasks);

// Copies queries and metapage to shared memory: they can be measured once all pages are written.
void share_queries(SharedTasks* tasks, SharedCurve* curve, const MetaPage& meta,
                   const CurveQuery* queries, uint32 count);

}  // namespace pgwarp
