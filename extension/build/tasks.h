// What is left to do for the processes of a build once all rows are encoded: to log pages of lists
// as the leader writes them, to write WAL ahead of that, and to measure the recall curve.
#pragma once

#include "extension/index/curve.h"
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
    // Pages of lists, which are for whoever takes them to be logged:
    BlockNumber next_page;
    BlockNumber pages_end;  // those that are written
    int logging;            // participants that log some
    bool all_are_written;
    bool wants_wal_ahead;       // until a worker takes it upon itself
    WalAheadFigures wal_ahead;  // what that one did
    // And queries of the curve, once all pages are written:
    bool curve_can_begin;  // SharedCurve lacks its grid only; until somebody takes it upon himself
    bool curve_is_there;   // nothing else of SharedCurve is read before
    uint32 next_query;     // in turn

    ConditionVariable work_condition;  // there is more to do, or no more to come
};
void init_tasks(SharedTasks* tasks);

// What measuring the curve takes from the leader, and what the participants bring. Behind it: the
// TIDs of the queries, those of their neighbors, the queries, and the lists of the neighbors of the
// first few, where they are known.
struct SharedCurve {
    MetaPage meta;
    CurveGrid grid;
    uint32 count;  // 0: there is nothing to measure
    slock_t mutex;
    CurveTally tally;  // under `mutex`

    static Size bytes(uint32 queries, uint32 dims) {
        return sizeof(SharedCurve) + Size{queries} * (1 + curve_neighbors) * sizeof(uint64) +
               Size{queries} * dims * sizeof(float) +
               Size{curve_trial_queries} * curve_neighbors * sizeof(uint32);
    }
    uint64* query_tids() { return reinterpret_cast<uint64*>(this + 1); }
    uint64* neighbors() { return query_tids() + count; }
    float* vectors() {
        return reinterpret_cast<float*>(neighbors() + Size{count} * curve_neighbors);
    }
    uint32* trial_lists() {
        return reinterpret_cast<uint32*>(vectors() + Size{count} * meta.code_dims);
    }
    CurveQuery query(uint32 number) {
        return {query_tids()[number], vectors() + Size{number} * meta.code_dims,
                neighbors() + Size{number} * curve_neighbors};
    }
    uint32 trials() const { return Min(count, curve_trial_queries); }
};

void init_curve(SharedCurve* curve);

// Takes what there is to do until there is no more to come. Some begin with pages, and others with
// queries.
void do_tasks(Relation index, SharedTasks* tasks, SharedCurve* curve, bool pages_first);

// --- for the leader

// Pages from this one on will come; one worker may write WAL meanwhile.
void begin_pages(SharedTasks* tasks, BlockNumber first, bool write_ahead);
// A listener of a BulkWriter, whose state is the tasks.
void note_written_pages(void* tasks, BlockNumber end);
void note_end_of_pages(SharedTasks* tasks);

// Before the curve begins. Lists of the first few queries' neighbors are shared where they are
// known.
void share_queries(SharedCurve* curve, const MetaPage& meta, const CurveQuery* queries,
                   uint32 count);
// The queries are there with those lists, for anybody to begin the curve with.
void let_curve_begin(SharedTasks* tasks);
// Its grid is there, too: queries can be measured once all pages are written.
void note_curve(SharedTasks* tasks);

}  // namespace pgwarp
