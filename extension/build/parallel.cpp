// A build's workers share one parallel scan of the table. On the CPU, each participant encodes the
// rows it reads, sorts their entries, and leaves its sorted run and the queries' neighbors it found
// to the leader, which takes part itself and then merges. Where a device encodes, workers fill ring
// blocks with rows in index form; the leader owns the device, feeds it full blocks, and reads rows
// itself while no block is full. Entries are sorted by list and TID, so the index does not depend
// on which process encoded a row.
//
// The workers stay after the pass: they log the pages that the leader writes, and then measure the
// recall curve with it (build/tasks).

#include <algorithm>
#include <cstring>

#include "kernels/executor.h"
#include "kernels/row_pass.h"
#include "extension/table/block_ring.h"
#include "extension/build/tasks.h"
#include "extension/index/column.h"
#include "extension/index/format.h"
#include "extension/index/lists.h"
#include "extension/build/parallel.h"
#include "extension/build/progress.h"
#include "extension/table/page_scan.h"
#include "extension/util/stopwatch.h"

extern "C" {
#include "access/parallel.h"
#include "access/table.h"
#include "access/tableam.h"
#include "access/xact.h"
#include "catalog/index.h"
#include "commands/progress.h"
#include "executor/instrument.h"
#include "miscadmin.h"
#include "optimizer/optimizer.h"
#include "optimizer/paths.h"
#include "optimizer/planner.h"
#include "pgstat.h"
#include "storage/condition_variable.h"
#include "storage/spin.h"
#include "tcop/tcopprot.h"
#include "utils/snapmgr.h"
}

namespace pgwarp {

namespace {

enum ShmKey : uint64 {
    key_shared = 0x70677701,
    key_sort,
    key_model,
    key_neighbors,
    key_query_text,
    key_wal_usage,
    key_buffer_usage,
    key_ring,   // where a device encodes
    key_curve,  // SharedCurve
};

// In dynamic shared memory. The parallel scan descriptor follows at the next BUFFERALIGN boundary.
struct SharedBuild {
    // Set by the leader before the workers start:
    Oid heap;
    Oid index;
    bool concurrent;
    int participants;
    int sort_memory;  // per participant, in kilobytes
    QuantizerShape shape;
    uint32 rotated_from;  // dimensions of the table's vectors; 0: no rotation
    uint32 query_count;

    ConditionVariable done_condition;
    slock_t mutex;
    // Under `mutex`:
    int done;
    double heap_rows;
    double rows;
    bool broken_hot_chain;  // a participant met one: see IndexInfo

    SharedTasks tasks;  // used once all rows are encoded
};

ParallelTableScanDesc scan_of(SharedBuild* shared) {
    return reinterpret_cast<ParallelTableScanDesc>(reinterpret_cast<char*>(shared) +
                                                   BUFFERALIGN(sizeof(SharedBuild)));
}

// Sizes, in floats, of the model's parts in shared memory: they follow each other, then come the
// queries.
struct ModelParts {
    Size centroids;
    Size codebook;
    Size rotation;
    Size queries;

    static ModelParts of(const QuantizerShape& shape, uint32 rotated_from, uint32 query_count) {
        return {Size{shape.lists} * shape.dims, Size{shape.codebook_rows()} * codewords,
                Size{rotated_from} * shape.dims,
                Size{query_count} * (rotated_from ? rotated_from : shape.dims)};
    }
    Size floats() const { return centroids + codebook + rotation + queries; }
};

EncodeInput input_of(const SharedBuild* shared, const float* model, Relation index) {
    const QuantizerShape& shape = shared->shape;
    const ModelParts parts = ModelParts::of(shape, shared->rotated_from, shared->query_count);
    const float* codebook = model + parts.centroids;
    const float* matrix = codebook + parts.codebook;
    EncodeInput input{
        {shape, model, codebook}, matrix + parts.rotation, shared->query_count, type_of(index)};
    if (shared->rotated_from > 0) input.model.rotation = {shared->rotated_from, shape.dims, matrix};
    return input;
}

void report_share(SharedBuild* shared, double heap_rows, double rows, const IndexInfo* info) {
    SpinLockAcquire(&shared->mutex);
    ++shared->done;
    shared->heap_rows += heap_rows;
    shared->rows += rows;
    shared->broken_hot_chain |= info->ii_BrokenHotChain;
    SpinLockRelease(&shared->mutex);
    ConditionVariableSignal(&shared->done_condition);
}

// One participant's share of the pass, where the CPU encodes.
void take_part(Relation heap, Relation index, IndexInfo* info, SharedBuild* shared,
               Sharedsort* shared_sort, const float* model, Neighbor* neighbors, bool progress) {
    SortCoordinateData coordinate = {};
    coordinate.isWorker = true;
    coordinate.nParticipants = -1;
    coordinate.sharedsort = shared_sort;
    EntrySort* sort = begin_entry_sort(shared->shape.m, shared->sort_memory, &coordinate);
    EncodePass* pass = begin_encode(input_of(shared, model, index), {sort_rows, sort});

    TableScanDesc scan = table_beginscan_parallel(heap, scan_of(shared));
    const double heap_rows =
        table_index_build_scan(heap, index, info, true, progress, encode_row, pass, scan);
    flush_encode(pass);
    perform_entry_sort(sort, shared->shape.lists, 1);
    memcpy(neighbors, neighbors_of(pass),
           Size{shared->query_count} * neighbors_kept * sizeof(Neighbor));

    report_share(shared, heap_rows, rows_of(pass), info);
    end_entry_sort(sort);
}

// --- where a device encodes

// State of a worker that fills blocks.
struct Filling {
    VectorType type;
    BlockRing* ring;
    RowBlock block;  // block.count is null: none taken yet
    Metric metric;
    uint32 dims;
    MemoryContext row_context;
    double rows;
};

void fill_row(Relation, ItemPointer tid, Datum* values, bool* nulls, bool, void* argument) {
    if (nulls[0]) return;
    Filling* filling = static_cast<Filling*>(argument);
    if (!filling->block.count) filling->block = take_empty_block(filling->ring);
    MemoryContextReset(filling->row_context);
    const MemoryContext before = MemoryContextSwitchTo(filling->row_context);
    const VectorView vector = filling->type.view(values[0]);
    MemoryContextSwitchTo(before);
    const uint32 at = (*filling->block.count)++;
    index_form(filling->metric, vector.values, filling->dims,
               filling->block.rows + Size{at} * filling->dims);
    filling->block.tids[at] = tid_number(*tid);
    ++filling->rows;
    if (at + 1 < block_rows_of(filling->ring)) return;
    hand_over(filling->ring, filling->block);
    filling->block = {};
}

void fill_blocks(Relation heap, Relation index, IndexInfo* info, SharedBuild* shared,
                 BlockRing* ring) {
    Filling filling = {};
    filling.type = type_of(index);
    filling.ring = ring;
    filling.metric = shared->shape.metric;
    filling.dims = shared->rotated_from > 0 ? shared->rotated_from : shared->shape.dims;
    filling.row_context =
        AllocSetContextCreate(CurrentMemoryContext, "ivfpq row", ALLOCSET_DEFAULT_SIZES);
    double heap_rows;
    if (may_scan_pages(heap, info)) {
        heap_rows = scan_pages(heap, index, info, scan_of(shared), fill_row, &filling);
    } else {
        TableScanDesc scan = table_beginscan_parallel(heap, scan_of(shared));
        heap_rows =
            table_index_build_scan(heap, index, info, true, false, fill_row, &filling, scan);
    }
    if (filling.block.count) hand_over(ring, filling.block);
    report_share(shared, heap_rows, filling.rows, info);
    leave_block_ring(ring);
}

// State of the leader, which reads rows itself while no block is full.
struct Taking {
    BlockRing* ring;
    EncodePass* pass;
};

void take_row(Relation index, ItemPointer tid, Datum* values, bool* nulls, bool alive,
              void* argument) {
    Taking* taking = static_cast<Taking*>(argument);
    RowBlock block;
    while (has_full_block(taking->ring) && take_full_block(taking->ring, &block))
        encode_block(taking->pass, taking->ring, block);
    encode_row(index, tid, values, nulls, alive, taking->pass);
}

void take_blocks(Relation heap, Relation index, IndexInfo* info, SharedBuild* shared,
                 ParallelContext* context, BlockRing* ring, EncodePass* pass) {
    Taking taking{ring, pass};
    double heap_rows = 0;
    // With many workers, feeding the device keeps the leader busy: it reads no rows itself.
    constexpr int many_workers = 4;
    if (context->nworkers_launched < many_workers) {
        TableScanDesc scan = table_beginscan_parallel(heap, scan_of(shared));
        heap_rows = table_index_build_scan(heap, index, info, true, true, take_row, &taking, scan);
        flush_encode(pass);
    }
    WaitForParallelWorkersToAttach(context);
    RowBlock block;
    double waiting = 0;
    for (Stopwatch watch; wait_for_full_block(ring, context->nworkers_launched, &block);) {
        waiting += watch.lap();
        encode_block(pass, ring, block);
        report_progress(PROGRESS_CREATEIDX_TUPLES_DONE, static_cast<int64>(rows_of(pass)));
        watch.lap();
    }
    ereport(DEBUG1, (errmsg_internal("%.3f s to wait for blocks of rows", waiting)));
    flush_encode(pass);
    // `rows` already holds the workers' counts: add only the leader's own.
    report_share(shared, heap_rows, rows_of(pass) - shared->rows, info);
}

RingShape ring_for(int workers, uint32 dims) {
    return ring_shape(workers, RowPass::most_under_way, dims,
                      static_cast<Size>(maintenance_work_mem) * 1024 / 4);
}

void wait_for_participants(SharedBuild* shared, int participants) {
    while (true) {
        SpinLockAcquire(&shared->mutex);
        const bool all = shared->done == participants;
        SpinLockRelease(&shared->mutex);
        if (all) break;
        ConditionVariableSleep(&shared->done_condition, WAIT_EVENT_PARALLEL_CREATE_INDEX_SCAN);
    }
    ConditionVariableCancelSleep();
}

EncodeResult encode_alone(Relation heap, Relation index, IndexInfo* info, const EncodeInput& input,
                          Executor* device) {
    EncodeResult result = {};
    result.sort = begin_entry_sort(input.model.shape.m, maintenance_work_mem / 4 * 3, nullptr);
    const RowSink sink{sort_rows, result.sort};
    EncodePass* pass =
        device
            ? begin_encode_on(device, ring_for(0, input.model.table_dims()).block_rows, input, sink)
            : begin_encode(input, sink);
    result.heap_rows =
        table_index_build_scan(heap, index, info, true, true, encode_row, pass, nullptr);
    flush_encode(pass);
    result.neighbors = neighbors_of(pass);
    report_phase(BuildPhase::sort);
    perform_entry_sort(result.sort, input.model.shape.lists, 1);
    result.participants = 1;
    result.rows = rows_of(pass);
    return result;
}

}  // namespace

struct ParallelEncode {
    ParallelContext* context;
    Snapshot snapshot;
    WalUsage* wal_usage;
    BufferUsage* buffer_usage;
    SharedBuild* shared;
    SharedCurve* curve;
    bool curve_has_begun;
};

int build_workers(Relation heap, Relation index) {
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

EncodeResult encode_table(Relation heap, Relation index, IndexInfo* info, const EncodeInput& input,
                          int workers, Executor* device) {
    if (device)
        workers = workers_in_shared_memory(workers, RowPass::most_under_way, input.model.shape.dims,
                                           static_cast<Size>(maintenance_work_mem) * 1024 / 4);
    if (workers == 0) return encode_alone(heap, index, info, input, device);

    EnterParallelMode();
    ParallelContext* context = CreateParallelContext("pgwarp", "pgwarp_build_worker", workers);
    const int participants = workers + 1;
    Snapshot snapshot = SnapshotAny;
    if (info->ii_Concurrent) snapshot = RegisterSnapshot(GetTransactionSnapshot());

    const QuantizerShape& shape = input.model.shape;
    const Size shared_bytes =
        add_size(BUFFERALIGN(sizeof(SharedBuild)), table_parallelscan_estimate(heap, snapshot));
    const Size sort_bytes = tuplesort_estimate_shared(participants);
    const ModelParts parts = ModelParts::of(shape, input.model.rotation.from, input.query_count);
    const Size model_bytes = parts.floats() * sizeof(float);
    const Size neighbor_bytes =
        Size{input.query_count} * neighbors_kept * participants * sizeof(Neighbor);
    const Size text_bytes = debug_query_string ? strlen(debug_query_string) + 1 : 0;
    const uint32 row_dims = input.model.table_dims();
    const RingShape ring_shape = ring_for(workers, row_dims);
    const Size ring_bytes =
        device ? block_ring_bytes(ring_shape.blocks, ring_shape.block_rows, row_dims) : 0;
    const Size sizes[] = {shared_bytes,
                          sort_bytes,
                          model_bytes,
                          neighbor_bytes,
                          text_bytes,
                          mul_size(sizeof(WalUsage), workers),
                          mul_size(sizeof(BufferUsage), workers),
                          ring_bytes,
                          SharedCurve::bytes(input.query_count, shape.dims)};
    for (const Size size : sizes) {
        shm_toc_estimate_chunk(&context->estimator, size);
        shm_toc_estimate_keys(&context->estimator, 1);
    }
    InitializeParallelDSM(context);
    if (context->seg == nullptr) {
        // Without dynamic shared memory the leader builds alone.
        if (IsMVCCSnapshot(snapshot)) UnregisterSnapshot(snapshot);
        DestroyParallelContext(context);
        ExitParallelMode();
        return encode_alone(heap, index, info, input, device);
    }

    void* chunks[lengthof(sizes)];
    for (int i = 0; i < static_cast<int>(lengthof(sizes)); ++i) {
        chunks[i] = shm_toc_allocate(context->toc, sizes[i]);
        // Absent keys: no query text, or no ring where the workers encode themselves.
        if (sizes[i] > 0) shm_toc_insert(context->toc, key_shared + i, chunks[i]);
    }
    SharedBuild* shared = static_cast<SharedBuild*>(chunks[0]);
    memset(static_cast<void*>(shared), 0, sizeof(SharedBuild));
    shared->heap = RelationGetRelid(heap);
    shared->index = RelationGetRelid(index);
    shared->concurrent = info->ii_Concurrent;
    shared->participants = participants;
    shared->sort_memory = maintenance_work_mem / participants;
    shared->shape = shape;
    shared->rotated_from = input.model.rotation.from;
    shared->query_count = input.query_count;
    ConditionVariableInit(&shared->done_condition);
    init_tasks(&shared->tasks);
    SpinLockInit(&shared->mutex);
    table_parallelscan_initialize(heap, scan_of(shared), snapshot);
    Sharedsort* shared_sort = static_cast<Sharedsort*>(chunks[1]);
    tuplesort_initialize_shared(shared_sort, participants, context->seg);
    float* model = static_cast<float*>(chunks[2]);
    const auto put = [&model](const float* from, Size floats) {
        if (floats > 0) memcpy(model, from, floats * sizeof(float));
        model += floats;
    };
    put(input.model.centroids, parts.centroids);
    put(input.model.codebook, parts.codebook);
    put(input.model.rotation.matrix, parts.rotation);
    put(input.queries, parts.queries);
    model = static_cast<float*>(chunks[2]);
    Neighbor* neighbors = static_cast<Neighbor*>(chunks[3]);
    if (text_bytes > 0) memcpy(chunks[4], debug_query_string, text_bytes);
    BlockRing* ring =
        device ? init_block_ring(chunks[7], ring_shape.blocks, ring_shape.block_rows, row_dims)
               : nullptr;
    SharedCurve* curve = static_cast<SharedCurve*>(chunks[8]);
    init_curve(curve);

    LaunchParallelWorkers(context);
    const int launched = context->nworkers_launched;
    EncodeResult result = {};
    result.parallel = static_cast<ParallelEncode*>(palloc(sizeof(ParallelEncode)));
    result.threads = 1 + launched;
    *result.parallel = {context,
                        snapshot,
                        static_cast<WalUsage*>(chunks[5]),
                        static_cast<BufferUsage*>(chunks[6]),
                        shared,
                        curve,
                        false};
    if (device) {
        result.sort = begin_entry_sort(shape.m, maintenance_work_mem / 4 * 3, nullptr);
        EncodePass* pass =
            begin_encode_on(device, ring_shape.block_rows, input, {sort_rows, result.sort});
        device->know_memory(ring, ring_bytes);
        take_blocks(heap, index, info, shared, context, ring, pass);
        result.neighbors = neighbors_of(pass);
        device->forget_memory(ring);
        info->ii_BrokenHotChain = shared->broken_hot_chain;
        report_phase(BuildPhase::sort);
        // The workers are idle until pages are written: the leader sorts with as many threads.
        perform_entry_sort(result.sort, shape.lists, 1 + launched);
        result.participants = 1;
        result.heap_rows = shared->heap_rows;
        result.rows = shared->rows;
        return result;
    }
    // Neighbors of the leader come first, then those of the workers by number.
    take_part(heap, index, info, shared, shared_sort, model, neighbors, true);
    WaitForParallelWorkersToAttach(context);
    wait_for_participants(shared, launched + 1);
    // PostgreSQL reads this from the leader to hide the index from snapshots older than it.
    info->ii_BrokenHotChain = shared->broken_hot_chain;

    SortCoordinateData* coordinate =
        static_cast<SortCoordinateData*>(palloc0(sizeof(SortCoordinateData)));
    coordinate->isWorker = false;
    coordinate->nParticipants = launched + 1;
    coordinate->sharedsort = shared_sort;
    result.sort = begin_entry_sort(shape.m, maintenance_work_mem, coordinate);
    report_phase(BuildPhase::sort);
    perform_entry_sort(result.sort, shape.lists, 1);
    result.neighbors = neighbors;
    result.participants = static_cast<uint32>(launched + 1);
    result.heap_rows = shared->heap_rows;
    result.rows = shared->rows;
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
    SharedTasks* tasks = &result.parallel->shared->tasks;
    begin_pages(tasks, writer->lists_begin, has_wal_ahead(result.parallel, writer->index));
    writer->listener = {note_written_pages, tasks};
    writer->lists_are_logged = true;
}

void end_of_pages(const EncodeResult& result) {
    if (result.parallel) note_end_of_pages(&result.parallel->shared->tasks);
}

void begin_curve_together(const EncodeResult& result, const MetaPage& meta,
                          const CurveQuery* queries, uint32 count) {
    if (!result.parallel || count == 0 || !queries[0].lists) return;
    share_queries(result.parallel->curve, meta, queries, count);
    result.parallel->curve_has_begun = true;
    let_curve_begin(&result.parallel->shared->tasks);
}

RecallCurve measure_together(const EncodeResult& result, Relation index, const MetaPage& meta,
                             const CurveQuery* queries, uint32 count) {
    if (!result.parallel) return measure_curve(index, meta, queries, count);
    SharedTasks* tasks = &result.parallel->shared->tasks;
    SharedCurve* curve = result.parallel->curve;
    Stopwatch watch;
    if (!result.parallel->curve_has_begun) {
        share_queries(curve, meta, queries, count);
        curve->grid = begin_curve(index, meta, queries, count);
        note_curve(tasks);
    }
    const double beginning = watch.lap();
    do_tasks(index, tasks, curve, true);
    const double working = watch.lap();
    WaitForParallelWorkersToFinish(result.parallel->context);
    ereport(DEBUG1, (errmsg_internal("%.3f s to begin the curve, %.3f s to log and measure, %.3f s "
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
    return end_curve(curve->grid, curve->tally, count);
}

void end_encode_table(EncodeResult* result) {
    end_entry_sort(result->sort);
    if (!result->parallel) return;
    ParallelEncode* parallel = result->parallel;
    WaitForParallelWorkersToFinish(parallel->context);
    for (int i = 0; i < parallel->context->nworkers_launched; ++i)
        InstrAccumParallelQuery(&parallel->buffer_usage[i], &parallel->wal_usage[i]);
    if (IsMVCCSnapshot(parallel->snapshot)) UnregisterSnapshot(parallel->snapshot);
    DestroyParallelContext(parallel->context);
    ExitParallelMode();
    result->parallel = nullptr;
}

}  // namespace pgwarp

using namespace pgwarp;

void pgwarp_build_worker(dsm_segment* segment, shm_toc* toc) {
    SharedBuild* shared = static_cast<SharedBuild*>(shm_toc_lookup(toc, key_shared, false));
    Sharedsort* shared_sort = static_cast<Sharedsort*>(shm_toc_lookup(toc, key_sort, false));
    const float* model = static_cast<float*>(shm_toc_lookup(toc, key_model, false));
    BlockRing* ring = static_cast<BlockRing*>(shm_toc_lookup(toc, key_ring, true));
    Neighbor* neighbors = static_cast<Neighbor*>(shm_toc_lookup(toc, key_neighbors, false));
    debug_query_string = static_cast<char*>(shm_toc_lookup(toc, key_query_text, true));
    pgstat_report_activity(STATE_RUNNING, debug_query_string);

    const LOCKMODE heap_lock = shared->concurrent ? ShareUpdateExclusiveLock : ShareLock;
    const LOCKMODE index_lock = shared->concurrent ? RowExclusiveLock : AccessExclusiveLock;
    Relation heap = table_open(shared->heap, heap_lock);
    Relation index = index_open(shared->index, index_lock);
    IndexInfo* info = BuildIndexInfo(index);
    info->ii_Concurrent = shared->concurrent;
    if (!ring) tuplesort_attach_shared(shared_sort, segment);

    InstrStartParallelQuery();
    const Size mine =
        Size{static_cast<uint32>(ParallelWorkerNumber) + 1} * shared->query_count * neighbors_kept;
    if (ring)
        fill_blocks(heap, index, info, shared, ring);
    else
        take_part(heap, index, info, shared, shared_sort, model, neighbors + mine, false);
    SharedCurve* curve = static_cast<SharedCurve*>(shm_toc_lookup(toc, key_curve, false));
    do_tasks(index, &shared->tasks, curve, ParallelWorkerNumber % 2 == 0);
    BufferUsage* buffer_usage =
        static_cast<BufferUsage*>(shm_toc_lookup(toc, key_buffer_usage, false));
    WalUsage* wal_usage = static_cast<WalUsage*>(shm_toc_lookup(toc, key_wal_usage, false));
    InstrEndParallelQuery(&buffer_usage[ParallelWorkerNumber], &wal_usage[ParallelWorkerNumber]);

    index_close(index, index_lock);
    table_close(heap, heap_lock);
}
