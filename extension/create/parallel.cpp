// A build's workers share one parallel scan of the table. On the CPU, each participant encodes the
// rows it reads, sorts their entries, and leaves its sorted run and the queries' neighbors it found
// to the leader, which takes part itself and then merges. Where a device encodes, the workers read
// the table for it (build/device_blocks). Entries are sorted by list and TID, so the index does not
// depend on which process encoded a row.
//
// The workers stay after the pass: they log the pages that the leader writes, and then measure the
// recall curve with it (create/tasks).

#include <cstring>

#include "kernels/executor.h"
#include "kernels/row_pass.h"
#include "extension/create/device_blocks.h"
#include "extension/create/parallel.h"
#include "extension/create/progress.h"
#include "extension/index/attributes.h"
#include "extension/util/stopwatch.h"

extern "C" {
#include "access/genam.h"
#include "access/parallel.h"
#include "access/table.h"
#include "access/tableam.h"
#include "access/xact.h"
#include "catalog/index.h"
#include "executor/instrument.h"
#include "miscadmin.h"
#include "optimizer/optimizer.h"
#include "optimizer/paths.h"
#include "optimizer/planner.h"
#include "pgstat.h"
#include "tcop/tcopprot.h"
#include "utils/snapmgr.h"
}

namespace pgwarp {

struct ParallelEncode {
    ParallelContext* context;
    Snapshot snapshot;
    BuildMemory memory;
    Size pool_bytes;
    uint32 block_rows;  // of the pool
};

int build_workers(Relation heap, Relation index) {
    if (OidIsValid(unsafe_hash(index))) return 0;
    int workers = plan_create_index_workers(RelationGetRelid(heap), RelationGetRelid(index));
    // The planner considers the size of the table only. Long vectors lie in TOAST, where reading a
    // row costs more. With expressions or a predicate the planner decides, as it knows which are
    // parallel-safe; a table whose parallel_workers is 0 gets none.
    if (workers > 0 || RelationGetParallelWorkers(heap, -1) == 0 ||
        !OidIsValid(heap->rd_rel->reltoastrelid) || RelationUsesLocalBuffers(heap) ||
        RelationGetIndexExpressions(index) != NIL || RelationGetIndexPredicate(index) != NIL)
        return workers;
    Relation toast = table_open(heap->rd_rel->reltoastrelid, AccessShareLock);
    const double pages = RelationGetNumberOfBlocks(toast);
    table_close(toast, AccessShareLock);
    for (double size = Max(min_parallel_table_scan_size, 1); pages >= size; size *= 3) ++workers;
    workers = Min(workers, max_parallel_maintenance_workers);
    // The planner's rule: each participant needs 32 MB to sort.
    while (workers > 0 && maintenance_work_mem / (workers + 1) < 32768) --workers;
    return workers;
}

namespace {

// One participant's share of the pass, where the CPU encodes. `neighbors`: the participant's own.
void take_part(const BuildTable& table, const BuildMemory& memory, Neighbor* neighbors,
               bool progress) {
    SharedBuild* shared = memory.shared;
    SortCoordinateData coordinate = {};
    coordinate.isWorker = true;
    coordinate.nParticipants = -1;
    coordinate.sharedsort = memory.sort;
    const EncodeInput input = input_of(shared, memory.model, table.index);
    EntrySort* sort = begin_entry_sort(sort_shape(input, shared->sort_memory), &coordinate);
    EncodePass* pass = begin_encode(input, {sort_rows, sort});

    TableScanDesc scan = compat_beginscan_parallel(table.heap, scan_of(shared));
    const double heap_rows = table_index_build_scan(table.heap, table.index, table.info, true,
                                                    progress, encode_row, pass, scan);
    flush_encode(pass);
    perform_entry_sort(sort, shared->shape.lists, 1);
    memcpy(neighbors, neighbors_of(pass), kept_neighbors(shared->query_count) * sizeof(Neighbor));

    report_share(shared, heap_rows, rows_of(pass), table.info);
    end_entry_sort(sort);
}

// Blocks that a build's device has at a time; without a device there is no pool.
uint32 held_by(const Executor* device) {
    return device ? static_cast<uint32>(device->most_in_flight()) : 0;
}

EncodeResult encode_alone(const BuildTable& table, const EncodeInput& input, Executor* device) {
    EncodeResult result = {};
    result.sort = begin_entry_sort(sort_shape(input, maintenance_work_mem / 4 * 3), nullptr);
    const RowSink sink{sort_rows, result.sort};
    EncodePass* pass =
        device ? begin_encode_on(device, pool_for(0, held_by(device), input.row()).block_rows,
                                 input, sink)
               : begin_encode(input, sink);
    result.heap_rows = table_index_build_scan(table.heap, table.index, table.info, true, true,
                                              encode_row, pass, nullptr);
    flush_encode(pass);
    result.neighbors = neighbors_of(pass);
    report_phase(BuildPhase::sort);
    perform_entry_sort(result.sort, input.model.shape.lists, 1);
    result.participants = 1;
    result.rows = rows_of(pass);
    return result;
}

// Null: there is no dynamic shared memory for the workers.
ParallelEncode* start_workers(const BuildTable& table, const EncodeInput& input, int workers,
                              const Executor* device) {
    EnterParallelMode();
    ParallelContext* context = CreateParallelContext("pgwarp", "pgwarp_build_worker", workers);
    Snapshot snapshot = SnapshotAny;
    if (table.info->ii_Concurrent) snapshot = RegisterSnapshot(GetTransactionSnapshot());
    const BuildMemoryPlan plan{table,
                               &input,
                               snapshot,
                               workers,
                               device != nullptr,
                               pool_for(workers, held_by(device), input.row())};
    estimate_build_memory(context, plan);
    InitializeParallelDSM(context);
    if (context->seg == nullptr) {
        if (IsMVCCSnapshot(snapshot)) UnregisterSnapshot(snapshot);
        DestroyParallelContext(context);
        ExitParallelMode();
        return nullptr;
    }
    const BuildMemory memory = make_build_memory(context, plan);
    LaunchParallelWorkers(context);
    auto* parallel = static_cast<ParallelEncode*>(palloc(sizeof(ParallelEncode)));
    *parallel = {context, snapshot, memory, pool_bytes(plan), plan.pool.block_rows};
    return parallel;
}

// PostgreSQL reads ii_BrokenHotChain from the leader, to hide the index from snapshots older than
// it.
void take_counts(const SharedBuild* shared, IndexInfo* info, EncodeResult* result) {
    info->ii_BrokenHotChain = shared->broken_hot_chain;
    result->heap_rows = shared->heap_rows;
    result->rows = shared->rows;
}

void encode_by_device(const BuildTable& table, const EncodeInput& input, Executor* device,
                      EncodeResult* result) {
    const ParallelEncode* parallel = result->parallel;
    const BuildMemory& memory = parallel->memory;
    result->sort = begin_entry_sort(sort_shape(input, maintenance_work_mem / 4 * 3), nullptr);
    EncodePass* pass =
        begin_encode_on(device, parallel->block_rows, input, {sort_rows, result->sort});
    device->register_memory(memory.pool, parallel->pool_bytes);
    take_blocks(table, parallel->context, memory, pass);
    result->neighbors = neighbors_of(pass);
    device->unregister_memory(memory.pool);
    take_counts(memory.shared, table.info, result);
    report_phase(BuildPhase::sort);
    // The workers are idle until pages are written: the leader sorts with as many threads.
    perform_entry_sort(result->sort, input.model.shape.lists, result->threads);
    result->participants = 1;
}

void encode_by_participants(const BuildTable& table, const EncodeInput& input,
                            EncodeResult* result) {
    const BuildMemory& memory = result->parallel->memory;
    ParallelContext* context = result->parallel->context;
    const int participants = context->nworkers_launched + 1;
    take_part(table, memory, memory.neighbors, true);
    WaitForParallelWorkersToAttach(context);
    wait_for_participants(memory.shared, participants);
    take_counts(memory.shared, table.info, result);

    SortCoordinateData* coordinate =
        static_cast<SortCoordinateData*>(palloc0(sizeof(SortCoordinateData)));
    coordinate->isWorker = false;
    coordinate->nParticipants = participants;
    coordinate->sharedsort = memory.sort;
    result->sort = begin_entry_sort(sort_shape(input, maintenance_work_mem), coordinate);
    report_phase(BuildPhase::sort);
    perform_entry_sort(result->sort, memory.shared->shape.lists, 1);
    result->neighbors = memory.neighbors;
    result->participants = static_cast<uint32>(participants);
}

}  // namespace

EncodeResult encode_table(const BuildTable& table, const EncodeInput& input, int workers,
                          Executor* device) {
    if (device)
        workers = workers_in_shared_memory(workers, held_by(device), input.row(),
                                           static_cast<Size>(maintenance_work_mem) * 1024 / 4);
    ParallelEncode* parallel = workers > 0 ? start_workers(table, input, workers, device) : nullptr;
    if (!parallel) return encode_alone(table, input, device);
    EncodeResult result = {};
    result.parallel = parallel;
    result.threads = 1 + parallel->context->nworkers_launched;
    if (device)
        encode_by_device(table, input, device, &result);
    else
        encode_by_participants(table, input, &result);
    return result;
}

namespace {

// Whether one of the workers writes WAL ahead of those that log: only if there are enough of them.
bool has_wal_ahead(const ParallelEncode* parallel, Relation index) {
    constexpr int enough_workers = 4;
    return RelationNeedsWAL(index) && parallel->context->nworkers_launched >= enough_workers;
}

}  // namespace

void log_together(const EncodeResult& result, BulkWriter* writer) {
    if (!result.parallel || !RelationNeedsWAL(writer->index)) return;
    SharedTasks* tasks = &result.parallel->memory.shared->tasks;
    begin_pages(tasks, writer->lists_begin, has_wal_ahead(result.parallel, writer->index));
    writer->listener = {note_written_pages, tasks};
    writer->lists_are_logged = true;
}

void end_of_pages(const EncodeResult& result) {
    if (result.parallel) note_end_of_pages(&result.parallel->memory.shared->tasks);
}

MeasuredCurve measure_together(const EncodeResult& result, Relation index, const MetaPage& meta,
                               const CurveQuery* queries, uint32 count) {
    if (!result.parallel) return measure_curve(index, meta, queries, count);
    SharedTasks* tasks = &result.parallel->memory.shared->tasks;
    SharedCurve* curve = result.parallel->memory.curve;
    Stopwatch watch;
    share_queries(tasks, curve, meta, queries, count);
    const double beginning = watch.lap();
    do_tasks(index, tasks, curve, true);
    const double working = watch.lap();
    WaitForParallelWorkersToFinish(result.parallel->context);
    ereport(DEBUG1, (errmsg_internal("%.3f s to share queries, %.3f s to log and measure, %.3f s "
                                     "to wait for %d workers",
                                     beginning, working, watch.lap(),
                                     result.parallel->context->nworkers_launched)));
    if (has_wal_ahead(result.parallel, index)) {
        // Needs no lock: the workers have ended.
        const WalAheadFigures& ahead = tasks->wal_ahead;
        ereport(DEBUG1,
                (errmsg_internal("WAL written ahead: %u times, %.1f MB, %.3f s", ahead.writes,
                                 static_cast<double>(ahead.bytes) / 1e6, ahead.seconds)));
    }
    return end_curve(curve->grid, curve->tally);
}

void end_encode_table(EncodeResult* result) {
    end_entry_sort(result->sort);
    if (!result->parallel) return;
    ParallelEncode* parallel = result->parallel;
    WaitForParallelWorkersToFinish(parallel->context);
    for (int i = 0; i < parallel->context->nworkers_launched; ++i)
        InstrAccumParallelQuery(&parallel->memory.buffer_usage[i], &parallel->memory.wal_usage[i]);
    if (IsMVCCSnapshot(parallel->snapshot)) UnregisterSnapshot(parallel->snapshot);
    DestroyParallelContext(parallel->context);
    ExitParallelMode();
    result->parallel = nullptr;
}

}  // namespace pgwarp

using namespace pgwarp;

void pgwarp_build_worker(dsm_segment* segment, shm_toc* toc) {
    const BuildMemory memory = find_build_memory(toc);
    SharedBuild* shared = memory.shared;
    debug_query_string = memory.query_text;
    pgstat_report_activity(STATE_RUNNING, debug_query_string);

    const LOCKMODE heap_lock = shared->concurrent ? ShareUpdateExclusiveLock : ShareLock;
    const LOCKMODE index_lock = shared->concurrent ? RowExclusiveLock : AccessExclusiveLock;
    Relation heap = table_open(shared->heap, heap_lock);
    Relation index = index_open(shared->index, index_lock);
    IndexInfo* info = BuildIndexInfo(index);
    info->ii_Concurrent = shared->concurrent;
    if (!memory.pool) tuplesort_attach_shared(memory.sort, segment);

    InstrStartParallelQuery();
    const Size mine =
        Size{static_cast<uint32>(ParallelWorkerNumber) + 1} * kept_neighbors(shared->query_count);
    if (memory.pool)
        fill_blocks({heap, index, info}, shared, memory.pool);
    else
        take_part({heap, index, info}, memory, memory.neighbors + mine, false);
    do_tasks(index, &shared->tasks, memory.curve, ParallelWorkerNumber % 2 == 0);
    InstrEndParallelQuery(&memory.buffer_usage[ParallelWorkerNumber],
                          &memory.wal_usage[ParallelWorkerNumber]);

    index_close(index, index_lock);
    table_close(heap, heap_lock);
}
