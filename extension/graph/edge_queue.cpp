#include <cstring>

#include "extension/create/wal_ahead.h"
#include "extension/graph/edge_queue.h"

extern "C" {
#include "access/genam.h"
#include "access/parallel.h"
#include "access/table.h"
#include "access/xact.h"
#include "executor/instrument.h"
#include "miscadmin.h"
#include "pgstat.h"
#include "storage/condition_variable.h"
#include "storage/spin.h"
#include "tcop/tcopprot.h"
}

namespace pgwarp {

namespace {

enum ShmKey : uint64 {
    key_shared = 0x70677901,
    key_usage,
    key_wal_usage,
    key_query_text,
};

enum class SlotState : uint8 { empty, full, taken };

// In dynamic shared memory; places for tasks follow it.
struct SharedQueue {
    static constexpr int most_slots = 64;

    EdgeLayout layout;
    Size slot_bytes;
    int slots;
    pg_atomic_uint32 writes_wal_ahead;  // the worker that raises it from 0 does
    slock_t mutex;
    // Under `mutex`:
    SlotState states[most_slots];
    bool ended;  // no more tasks come

    ConditionVariable full;   // there is a task, or the end
    ConditionVariable empty;  // a task is done

    EdgeTask* task(int slot) {
        return reinterpret_cast<EdgeTask*>(reinterpret_cast<char*>(this) +
                                           MAXALIGN(sizeof(SharedQueue)) +
                                           static_cast<Size>(slot) * slot_bytes);
    }
};

// The first slot of this state, which becomes another one; -1: there is none.
int change_slot(SharedQueue* queue, SlotState from, SlotState to, bool* ended = nullptr) {
    int found = -1;
    SpinLockAcquire(&queue->mutex);
    for (int slot = 0; slot < queue->slots && found < 0; ++slot)
        if (queue->states[slot] == from) found = slot;
    if (found >= 0) queue->states[found] = to;
    if (ended) *ended = queue->ended;
    SpinLockRelease(&queue->mutex);
    return found;
}

void set_slot(SharedQueue* queue, int slot, SlotState state) {
    SpinLockAcquire(&queue->mutex);
    queue->states[slot] = state;
    SpinLockRelease(&queue->mutex);
}

// False: no task waits.
bool run_one(SharedQueue* queue, const EdgeTarget& target, bool* ended = nullptr) {
    const int slot = change_slot(queue, SlotState::full, SlotState::taken, ended);
    if (slot < 0) return false;
    // Who is busy must not be woken in the place of another.
    ConditionVariableCancelSleep();
    run_edge_task(target, *queue->task(slot));
    set_slot(queue, slot, SlotState::empty);
    ConditionVariableSignal(&queue->empty);
    return true;
}

bool all_are_done(void* state) {
    SharedQueue* queue = static_cast<SharedQueue*>(state);
    SpinLockAcquire(&queue->mutex);
    bool done = queue->ended;
    for (int slot = 0; slot < queue->slots; ++slot)
        done = done && queue->states[slot] == SlotState::empty;
    SpinLockRelease(&queue->mutex);
    return done;
}

}  // namespace

struct EdgeQueue {
    EdgeTarget target;
    ParallelContext* context;
    SharedQueue* shared;
    BufferUsage* usage;
    WalUsage* wal_usage;
};

EdgeQueue* open_edge_queue(const EdgeTarget& target, int workers) {
    if (workers <= 0 || IsInParallelMode()) return nullptr;
    const int slots = Min(2 * (workers + 1), SharedQueue::most_slots);
    const Size slot_bytes = task_bytes(*target.layout);
    const Size text_bytes = debug_query_string ? strlen(debug_query_string) + 1 : 0;
    // In the order of ShmKey.
    const Size sizes[] = {MAXALIGN(sizeof(SharedQueue)) + static_cast<Size>(slots) * slot_bytes,
                          mul_size(sizeof(BufferUsage), workers),
                          mul_size(sizeof(WalUsage), workers), text_bytes};
    EnterParallelMode();
    ParallelContext* context = CreateParallelContext("pgwarp", "pgwarp_edge_worker", workers);
    for (const Size size : sizes) {
        shm_toc_estimate_chunk(&context->estimator, size);
        shm_toc_estimate_keys(&context->estimator, 1);
    }
    InitializeParallelDSM(context);
    void* chunks[lengthof(sizes)] = {};
    for (int i = 0; context->seg && i < static_cast<int>(lengthof(sizes)); ++i) {
        chunks[i] = shm_toc_allocate(context->toc, sizes[i]);
        if (sizes[i] > 0) shm_toc_insert(context->toc, key_shared + i, chunks[i]);
    }
    if (context->seg) {
        SharedQueue* shared = static_cast<SharedQueue*>(chunks[0]);
        memset(static_cast<void*>(shared), 0, sizeof(SharedQueue));
        shared->layout = *target.layout;
        shared->slot_bytes = slot_bytes;
        shared->slots = slots;
        pg_atomic_init_u32(&shared->writes_wal_ahead, 0);
        SpinLockInit(&shared->mutex);
        ConditionVariableInit(&shared->full);
        ConditionVariableInit(&shared->empty);
        if (text_bytes > 0) memcpy(chunks[3], debug_query_string, text_bytes);
        // Of less use where there are few: they write their WAL themselves.
        constexpr int enough_workers = 4;
        if (workers < enough_workers || !RelationNeedsWAL(target.table))
            pg_atomic_write_u32(&shared->writes_wal_ahead, 1);
        LaunchParallelWorkers(context);
    }
    if (context->nworkers_launched == 0) {
        DestroyParallelContext(context);
        ExitParallelMode();
        return nullptr;
    }
    auto* queue = static_cast<EdgeQueue*>(palloc(sizeof(EdgeQueue)));
    *queue = {target, context, static_cast<SharedQueue*>(chunks[0]),
              static_cast<BufferUsage*>(chunks[1]), static_cast<WalUsage*>(chunks[2])};
    return queue;
}

void submit_task(EdgeQueue* queue, const EdgeTask& task) {
    SharedQueue* shared = queue->shared;
    int slot;
    while ((slot = change_slot(shared, SlotState::empty, SlotState::taken)) < 0) {
        // Wakes by itself where a task was done in between.
        if (!run_one(shared, queue->target))
            ConditionVariableSleep(&shared->empty, WAIT_EVENT_PARALLEL_CREATE_INDEX_SCAN);
    }
    ConditionVariableCancelSleep();
    memcpy(static_cast<void*>(shared->task(slot)), &task, task.bytes());
    set_slot(shared, slot, SlotState::full);
    ConditionVariableSignal(&shared->full);
}

void close_edge_queue(EdgeQueue* queue) {
    SharedQueue* shared = queue->shared;
    SpinLockAcquire(&shared->mutex);
    shared->ended = true;
    SpinLockRelease(&shared->mutex);
    ConditionVariableBroadcast(&shared->full);
    while (run_one(shared, queue->target)) CHECK_FOR_INTERRUPTS();
    // Reports what a worker failed of.
    WaitForParallelWorkersToFinish(queue->context);
    for (int i = 0; i < queue->context->nworkers_launched; ++i)
        InstrAccumParallelQuery(&queue->usage[i], &queue->wal_usage[i]);
    ereport(DEBUG1, (errmsg_internal("%d workers wrote pages of edges",
                                     queue->context->nworkers_launched)));
    DestroyParallelContext(queue->context);
    ExitParallelMode();
    pfree(queue);
}

namespace {

void run_tasks(SharedQueue* queue, const EdgeTarget& target) {
    bool ended = false;
    while (true) {
        CHECK_FOR_INTERRUPTS();
        if (run_one(queue, target, &ended)) continue;
        if (ended) break;
        ConditionVariableSleep(&queue->full, WAIT_EVENT_PARALLEL_CREATE_INDEX_SCAN);
    }
    ConditionVariableCancelSleep();
}

}  // namespace

}  // namespace pgwarp

using namespace pgwarp;

void pgwarp_edge_worker(dsm_segment*, shm_toc* toc) {
    SharedQueue* queue = static_cast<SharedQueue*>(shm_toc_lookup(toc, key_shared, false));
    debug_query_string = static_cast<char*>(shm_toc_lookup(toc, key_query_text, true));
    pgstat_report_activity(STATE_RUNNING, debug_query_string);
    InstrStartParallelQuery();
    if (pg_atomic_fetch_add_u32(&queue->writes_wal_ahead, 1) == 0) {
        write_wal_ahead(all_are_done, queue);
    } else {
        Relation table = table_open(queue->layout.table, RowExclusiveLock);
        Relation index = index_open(queue->layout.index, RowExclusiveLock);
        run_tasks(queue, open_edge_target(&queue->layout, table, index));
        index_close(index, RowExclusiveLock);
        table_close(table, RowExclusiveLock);
    }
    auto* usage = static_cast<BufferUsage*>(shm_toc_lookup(toc, key_usage, false));
    auto* wal_usage = static_cast<WalUsage*>(shm_toc_lookup(toc, key_wal_usage, false));
    InstrEndParallelQuery(&usage[ParallelWorkerNumber], &wal_usage[ParallelWorkerNumber]);
}
