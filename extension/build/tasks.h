// What the processes of a build do once all rows are encoded: log list pages as the leader writes
// them, write WAL ahead of that, and measure the recall curve.
#pragma once

#include "extension/build/curve.h"
#include "extension/build/wal_ahead.h"

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
    // Queries of the curve, to be measured once all pages are written:
    bool curve_can_begin;  // only the grid is missing; cleared by the worker that claims it
    bool curve_is_there;   // SharedCurve is complete; measuring does not read it before
    uint32 next_query;

    ConditionVariable work_condition;  // there is more to do, or the end has come
};
void init_tasks(SharedTasks* tasks);

// What the leader gives for measuring the curve, and what the participants measure. Followed in
// memory by the TIDs of the queries, their neighbors, those of the first queries, which
// may have more of them, the queries, and the lists of the first queries' neighbors, where known.
struct SharedCurve {
    MetaPage meta;
    CurveGrid grid;
    uint32 count;  // 0: nothing to measure
    uint32 wide;   // of the first queries, those with most_curve_neighbors
    slock_t mutex;
    CurveTally tally;  // under `mutex`

    static Size bytes(uint32 queries, uint32 dims) {
        const Size of_trials = Size{curve_trial_queries} * most_curve_neighbors;
        return sizeof(SharedCurve) + Size{queries} * sizeof(uint64) +
               (Size{queries} * curve_neighbors + of_trials) * sizeof(Neighbor) +
               Size{queries} * dims * sizeof(float) + of_trials * sizeof(uint32);
    }
    uint64* query_tids() { return reinterpret_cast<uint64*>(this + 1); }
    Neighbor* neighbors() { return reinterpret_cast<Neighbor*>(query_tids() + count); }
    Neighbor* wide_neighbors() { return neighbors() + Size{count} * curve_neighbors; }
    float* vectors() {
        return reinterpret_cast<float*>(wide_neighbors() +
                                        Size{curve_trial_queries} * most_curve_neighbors);
    }
    uint32* trial_lists() {
        return reinterpret_cast<uint32*>(vectors() + Size{count} * meta.code_dims);
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

// Copies queries and metapage to shared memory, before the curve begins. Includes the lists of the
// first queries' neighbors, where known.
void share_queries(SharedCurve* curve, const MetaPage& meta, const CurveQuery* queries,
                   uint32 count);
// The queries are shared, with those lists: any participant may begin the curve.
void let_curve_begin(SharedTasks* tasks);
// The grid is ready, too: queries can be measured once all pages are written.
void note_curve(SharedTasks* tasks);

}  // namespace pgwarp
