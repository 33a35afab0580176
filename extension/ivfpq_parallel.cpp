// A build's workers share one scan of the table. Each encodes the rows it gets, sorts their
// entries, and leaves its sorted run and its view of the queries' neighbors to the leader, which
// takes part itself and then merges. Entries are sorted by list and TID, so the index does not
// depend on who encoded what.

#include <cstring>

#include "extension/ivfpq.h"
#include "extension/ivfpq_parallel.h"

extern "C" {
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
};

// In dynamic shared memory. The parallel scan descriptor follows, at a multiple of the alignment.
struct SharedBuild {
    // Set by the leader before the workers start:
    Oid heap;
    Oid index;
    bool concurrent;
    int participants;
    int sort_memory;  // a participant's, in kilobytes
    QuantizerShape shape;
    uint32 rotated_from;  // dimensions of the table's vectors; 0: there is no rotation
    uint32 query_count;

    ConditionVariable done_condition;
    slock_t mutex;
    // Under `mutex`:
    int done;
    double heap_rows;
    double rows;
    bool broken_hot_chain;  // somebody met one: see IndexInfo
};

ParallelTableScanDesc scan_of(SharedBuild* shared) {
    return reinterpret_cast<ParallelTableScanDesc>(reinterpret_cast<char*>(shared) +
                                                   BUFFERALIGN(sizeof(SharedBuild)));
}

// The parts of a model in shared memory, one after the other, and the queries behind them.
struct ModelParts {
    Size centroids;
    Size codebook;
    Size rotation;
    Size queries;

    static ModelParts of(const QuantizerShape& shape, uint32 rotated_from, uint32 query_count) {
        return {Size{shape.lists} * shape.dims, Size{shape.dims} * codewords,
                Size{rotated_from} * shape.dims,
                Size{query_count} * (rotated_from ? rotated_from : shape.dims)};
    }
    Size floats() const { return centroids + codebook + rotation + queries; }
};

EncodeInput input_of(const SharedBuild* shared, const float* model) {
    const QuantizerShape& shape = shared->shape;
    const ModelParts parts = ModelParts::of(shape, shared->rotated_from, shared->query_count);
    const float* codebook = model + parts.centroids;
    const float* matrix = codebook + parts.codebook;
    EncodeInput input{{shape, model, codebook}, matrix + parts.rotation, shared->query_count};
    if (shared->rotated_from > 0) input.model.rotation = {shared->rotated_from, shape.dims, matrix};
    return input;
}

// One participant's share of the pass.
void take_part(Relation heap, Relation index, IndexInfo* info, SharedBuild* shared,
               Sharedsort* shared_sort, const float* model, Neighbor* neighbors, bool progress) {
    SortCoordinateData coordinate = {};
    coordinate.isWorker = true;
    coordinate.nParticipants = -1;
    coordinate.sharedsort = shared_sort;
    EntrySort* sort = begin_entry_sort(shared->shape.m, shared->sort_memory, &coordinate);
    EncodePass* pass = begin_encode(input_of(shared, model), {sort_row, sort});

    TableScanDesc scan = table_beginscan_parallel(heap, scan_of(shared));
    const double heap_rows =
        table_index_build_scan(heap, index, info, true, progress, encode_row, pass, scan);
    flush_encode(pass);
    perform_entry_sort(sort);
    memcpy(neighbors, neighbors_of(pass),
           Size{shared->query_count} * neighbors_kept * sizeof(Neighbor));

    SpinLockAcquire(&shared->mutex);
    ++shared->done;
    shared->heap_rows += heap_rows;
    shared->rows += rows_of(pass);
    shared->broken_hot_chain |= info->ii_BrokenHotChain;
    SpinLockRelease(&shared->mutex);
    ConditionVariableSignal(&shared->done_condition);
    end_entry_sort(sort);
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

EncodeResult encode_alone(Relation heap, Relation index, IndexInfo* info,
                          const EncodeInput& input) {
    EncodeResult result = {};
    result.sort = begin_entry_sort(input.model.shape.m, maintenance_work_mem, nullptr);
    EncodePass* pass = begin_encode(input, {sort_row, result.sort});
    result.heap_rows =
        table_index_build_scan(heap, index, info, true, true, encode_row, pass, nullptr);
    flush_encode(pass);
    perform_entry_sort(result.sort);
    result.neighbors = neighbors_of(pass);
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
};

int build_workers(Relation heap, Relation index) {
    int workers = plan_create_index_workers(RelationGetRelid(heap), RelationGetRelid(index));
    // The planner looks at the size of the table alone. Long vectors lie outside of it, where each
    // row costs all the more. Expressions are left to the planner, who knows which are safe, and a
    // table that is to have no workers has none.
    if (workers > 0 || RelationGetParallelWorkers(heap, -1) == 0 ||
        !OidIsValid(heap->rd_rel->reltoastrelid) || RelationUsesLocalBuffers(heap) ||
        RelationGetIndexExpressions(index) != NIL || RelationGetIndexPredicate(index) != NIL)
        return workers;
    Relation toast = table_open(heap->rd_rel->reltoastrelid, AccessShareLock);
    const double pages = RelationGetNumberOfBlocks(toast);
    table_close(toast, AccessShareLock);
    for (double size = Max(min_parallel_table_scan_size, 1); pages >= size; size *= 3) ++workers;
    workers = Min(workers, max_parallel_maintenance_workers);
    // As the planner: a sort with less memory than this is not worth its process.
    while (workers > 0 && maintenance_work_mem / (workers + 1) < 32768) --workers;
    return workers;
}

EncodeResult encode_table(Relation heap, Relation index, IndexInfo* info, const EncodeInput& input,
                          int workers) {
    if (workers == 0) return encode_alone(heap, index, info, input);

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
    const Size sizes[] = {shared_bytes,
                          sort_bytes,
                          model_bytes,
                          neighbor_bytes,
                          text_bytes,
                          mul_size(sizeof(WalUsage), workers),
                          mul_size(sizeof(BufferUsage), workers)};
    for (const Size size : sizes) {
        shm_toc_estimate_chunk(&context->estimator, size);
        shm_toc_estimate_keys(&context->estimator, 1);
    }
    InitializeParallelDSM(context);
    if (context->seg == nullptr) {
        // No shared memory to be had: the leader does it alone.
        if (IsMVCCSnapshot(snapshot)) UnregisterSnapshot(snapshot);
        DestroyParallelContext(context);
        ExitParallelMode();
        return encode_alone(heap, index, info, input);
    }

    void* chunks[lengthof(sizes)];
    for (int i = 0; i < static_cast<int>(lengthof(sizes)); ++i) {
        chunks[i] = shm_toc_allocate(context->toc, sizes[i]);
        // Workers do without the text of a statement where there is none.
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

    LaunchParallelWorkers(context);
    const int launched = context->nworkers_launched;
    EncodeResult result = {};
    result.parallel = static_cast<ParallelEncode*>(palloc(sizeof(ParallelEncode)));
    *result.parallel = {context, snapshot, static_cast<WalUsage*>(chunks[5]),
                        static_cast<BufferUsage*>(chunks[6])};
    // The leader's neighbors come first, then the workers' in their order.
    take_part(heap, index, info, shared, shared_sort, model, neighbors, true);
    WaitForParallelWorkersToAttach(context);
    wait_for_participants(shared, launched + 1);
    // PostgreSQL keeps the index from snapshots older than it by what the leader says.
    info->ii_BrokenHotChain = shared->broken_hot_chain;

    SortCoordinateData* coordinate =
        static_cast<SortCoordinateData*>(palloc0(sizeof(SortCoordinateData)));
    coordinate->isWorker = false;
    coordinate->nParticipants = launched + 1;
    coordinate->sharedsort = shared_sort;
    result.sort = begin_entry_sort(shape.m, maintenance_work_mem, coordinate);
    perform_entry_sort(result.sort);
    result.neighbors = neighbors;
    result.participants = static_cast<uint32>(launched + 1);
    result.heap_rows = shared->heap_rows;
    result.rows = shared->rows;
    return result;
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
    Neighbor* neighbors = static_cast<Neighbor*>(shm_toc_lookup(toc, key_neighbors, false));
    debug_query_string = static_cast<char*>(shm_toc_lookup(toc, key_query_text, true));
    pgstat_report_activity(STATE_RUNNING, debug_query_string);

    const LOCKMODE heap_lock = shared->concurrent ? ShareUpdateExclusiveLock : ShareLock;
    const LOCKMODE index_lock = shared->concurrent ? RowExclusiveLock : AccessExclusiveLock;
    Relation heap = table_open(shared->heap, heap_lock);
    Relation index = index_open(shared->index, index_lock);
    IndexInfo* info = BuildIndexInfo(index);
    info->ii_Concurrent = shared->concurrent;
    tuplesort_attach_shared(shared_sort, segment);

    InstrStartParallelQuery();
    const Size mine =
        Size{static_cast<uint32>(ParallelWorkerNumber) + 1} * shared->query_count * neighbors_kept;
    take_part(heap, index, info, shared, shared_sort, model, neighbors + mine, false);
    BufferUsage* buffer_usage =
        static_cast<BufferUsage*>(shm_toc_lookup(toc, key_buffer_usage, false));
    WalUsage* wal_usage = static_cast<WalUsage*>(shm_toc_lookup(toc, key_wal_usage, false));
    InstrEndParallelQuery(&buffer_usage[ParallelWorkerNumber], &wal_usage[ParallelWorkerNumber]);

    index_close(index, index_lock);
    table_close(heap, heap_lock);
}
