#include <algorithm>
#include <cstring>

#include "extension/create/tasks.h"
#include "extension/create/bulk.h"

extern "C" {
#include "access/parallel.h"
#include "miscadmin.h"
#include "pgstat.h"
#include "storage/bufmgr.h"
}

namespace pgwarp {

namespace {

// Pages that one participant logs at a time: a few WAL records of 32 pages.
constexpr BlockNumber range_pages = 128;
// Most participants that may log at a time. Full WAL buffers are written out page by page under one
// lock: a few participants keep its holder busy, and more would only contend for it. Each pins the
// pages of its record, which must not be most of shared buffers.
int most_logging() {
    return std::clamp(NBuffers / 256, 1, 4);
}

enum class TaskKind { wait, log, write_ahead, look, measure, end };
struct Task {
    TaskKind kind;
    uint32 first, end;  // pages to log, or lists to look through
    uint32 query;
};

// The next task of this participant, which prefers logging pages or measuring queries.
Task take_task(SharedTasks* tasks, const SharedCurve* curve, bool pages_first) {
    Task task = {TaskKind::wait, 0, 0, 0};
    SpinLockAcquire(&tasks->mutex);
    const BlockNumber written = tasks->pages_end - tasks->next_page;
    const bool pages = tasks->logging < most_logging() &&
                       (written >= range_pages || (tasks->all_are_written && written > 0));
    const bool lists =
        tasks->all_are_written && tasks->has_queries && tasks->next_list < curve->meta.lists;
    const bool queries = tasks->has_grid && tasks->next_query < curve->count;
    if (tasks->wants_wal_ahead && IsParallelWorker()) {
        task.kind = TaskKind::write_ahead;
        tasks->wants_wal_ahead = false;
    } else if (pages && (pages_first || !(lists || queries))) {
        task = {TaskKind::log, tasks->next_page, tasks->next_page + Min(written, range_pages), 0};
        tasks->next_page = task.end;
        ++tasks->logging;
    } else if (lists) {
        // As many as give each participant several tasks.
        const uint32 some = Max(curve->meta.lists / 64, 1u);
        task = {TaskKind::look, tasks->next_list, Min(tasks->next_list + some, curve->meta.lists),
                0};
        tasks->next_list = task.end;
        ++tasks->looking;
    } else if (queries) {
        task = {TaskKind::measure, 0, 0, tasks->next_query++};
    } else if (tasks->has_grid) {
        // No query is left. Remaining pages are left to the participants that log already.
        task.kind = TaskKind::end;
    }
    SpinLockRelease(&tasks->mutex);
    return task;
}

bool all_are_logged(void* state) {
    SharedTasks* tasks = static_cast<SharedTasks*>(state);
    SpinLockAcquire(&tasks->mutex);
    const bool logged =
        tasks->all_are_written && tasks->next_page == tasks->pages_end && tasks->logging == 0;
    SpinLockRelease(&tasks->mutex);
    return logged;
}

// Makes the grid of the curve.
void begin_shared_curve(Relation index, SharedTasks* tasks, SharedCurve* curve) {
    CurveQuery trials[curve_trial_queries];
    for (uint32 i = 0; i < curve->trials(); ++i) trials[i] = curve->query(i);
    const NeighborPlaces places = curve->places();
    curve->grid = begin_curve({index, curve->meta, places}, trials, curve->count, curve->wide);
    SpinLockAcquire(&tasks->mutex);
    tasks->has_grid = true;
    SpinLockRelease(&tasks->mutex);
    ConditionVariableBroadcast(&tasks->work_condition);
}

void look_through_lists(Relation index, SharedTasks* tasks, SharedCurve* curve, const Task& task) {
    curve->places().look_through(index, curve->meta, task.first, task.end);
    SpinLockAcquire(&tasks->mutex);
    const bool last = --tasks->looking == 0 && tasks->next_list == curve->meta.lists;
    SpinLockRelease(&tasks->mutex);
    if (last) begin_shared_curve(index, tasks, curve);
}

}  // namespace

void init_tasks(SharedTasks* tasks) {
    memset(static_cast<void*>(tasks), 0, sizeof(SharedTasks));
    SpinLockInit(&tasks->mutex);
    ConditionVariableInit(&tasks->work_condition);
}

void init_curve(SharedCurve* curve) {
    memset(static_cast<void*>(curve), 0, sizeof(SharedCurve));
    SpinLockInit(&curve->mutex);
}

void do_tasks(Relation index, SharedTasks* tasks, SharedCurve* curve, bool pages_first) {
    CurveTally tally = {};
    while (true) {
        CHECK_FOR_INTERRUPTS();
        const Task task = take_task(tasks, curve, pages_first);
        if (task.kind == TaskKind::wait) {
            ConditionVariableSleep(&tasks->work_condition, WAIT_EVENT_PARALLEL_CREATE_INDEX_SCAN);
            continue;
        }
        ConditionVariableCancelSleep();
        if (task.kind == TaskKind::end) break;
        if (task.kind == TaskKind::log) {
            log_pages(index, task.first, task.end);
            SpinLockAcquire(&tasks->mutex);
            --tasks->logging;
            SpinLockRelease(&tasks->mutex);
            continue;
        }
        if (task.kind == TaskKind::write_ahead) {
            const WalAheadFigures figures = write_wal_ahead(all_are_logged, tasks);
            SpinLockAcquire(&tasks->mutex);
            tasks->wal_ahead = figures;
            SpinLockRelease(&tasks->mutex);
            continue;
        }
        if (task.kind == TaskKind::look) {
            look_through_lists(index, tasks, curve, task);
            continue;
        }
        const NeighborPlaces places = curve->places();
        tally_query({index, curve->meta, places}, curve->grid, curve->query(task.query), task.query,
                    &tally);
    }
    SpinLockAcquire(&curve->mutex);
    add_tally(tally, &curve->tally);
    SpinLockRelease(&curve->mutex);
}

void begin_pages(SharedTasks* tasks, BlockNumber first, bool write_ahead) {
    SpinLockAcquire(&tasks->mutex);
    tasks->next_page = tasks->pages_end = first;
    tasks->wants_wal_ahead = write_ahead;
    SpinLockRelease(&tasks->mutex);
    ConditionVariableSignal(&tasks->work_condition);
}

void note_written_pages(void* state, BlockNumber end) {
    SharedTasks* tasks = static_cast<SharedTasks*>(state);
    SpinLockAcquire(&tasks->mutex);
    const BlockNumber ranges = end / range_pages - tasks->pages_end / range_pages;
    tasks->pages_end = end;
    SpinLockRelease(&tasks->mutex);
    // Wake one participant for each range: waking all would take the leader longer, and most could
    // not log.
    for (BlockNumber i = 0; i < ranges; ++i) ConditionVariableSignal(&tasks->work_condition);
}

void note_end_of_pages(SharedTasks* tasks) {
    SpinLockAcquire(&tasks->mutex);
    tasks->all_are_written = true;
    const BlockNumber left = tasks->pages_end - tasks->next_page;
    SpinLockRelease(&tasks->mutex);
    ConditionVariableBroadcast(&tasks->work_condition);
    ereport(DEBUG1, (errmsg_internal("%u pages are left to log when the last is written", left)));
}

void share_queries(SharedTasks* tasks, SharedCurve* curve, const MetaPage& meta,
                   const CurveQuery* queries, uint32 count) {
    curve->meta = meta;
    curve->count = count;
    curve->wide = count_wide(queries, curve->trials());
    for (uint32 i = 0; i < count; ++i) {
        curve->query_tids()[i] = queries[i].self;
        const Neighbor* neighbors = queries[i].neighbors;
        if (i < curve->wide)
            memcpy(curve->wide_neighbors() + Size{i} * most_curve_neighbors, neighbors,
                   most_curve_neighbors * sizeof(Neighbor));
        else
            memcpy(curve->neighbors() + Size{i} * curve_neighbors, neighbors,
                   curve_neighbors * sizeof(Neighbor));
        memcpy(curve->vectors() + Size{i} * meta.code_dims, queries[i].vector,
               meta.code_dims * sizeof(float));
    }
    NeighborPlaces places = curve->places();
    places.clear();
    for (uint32 i = 0; i < count; ++i) places.want(queries[i].neighbors, queries[i].room);
    SpinLockAcquire(&tasks->mutex);
    tasks->has_queries = true;
    SpinLockRelease(&tasks->mutex);
    ConditionVariableBroadcast(&tasks->work_condition);
}

}  // namespace pgwarp
