#include <cstring>

#include "extension/create/shared_build.h"
#include "extension/index/column.h"

extern "C" {
#include "access/tableam.h"
#include "pgstat.h"
#include "tcop/tcopprot.h"
}

namespace pgwarp {

namespace {

// Pieces of the segment. The key of a piece in the table of contents is first_key plus its number.
constexpr uint64 first_key = 0x70677701;
enum Piece : int {
    piece_shared,
    piece_sort,
    piece_model,
    piece_neighbors,
    piece_query_text,
    piece_wal_usage,
    piece_buffer_usage,
    piece_pool,
    piece_curve,
    piece_count
};
struct PieceSizes {
    Size bytes[piece_count];
};

// Sizes, in floats, of the model's parts in shared memory: they follow each other, then come the
// queries.
struct ModelParts {
    Size centroids;
    Size codebook;
    Size rotation;
    Size parents;
    Size parents_first;  // numbers, as large as floats
    Size queries;

    static ModelParts of(const QuantizerShape& shape, uint32 rotated_from, uint32 parents,
                         uint32 query_count) {
        return {Size{shape.lists} * shape.dims,
                Size{shape.codebook_rows()} * codewords,
                Size{rotated_from} * shape.dims,
                Size{parents} * shape.dims,
                parents > 0 ? Size{parents} + 1 : 0,
                Size{query_count} * (rotated_from ? rotated_from : shape.dims)};
    }
    Size floats() const {
        return centroids + codebook + rotation + parents + parents_first + queries;
    }
};

Size query_text_bytes() {
    return debug_query_string ? strlen(debug_query_string) + 1 : 0;
}

ModelParts parts_of(const EncodeInput& input) {
    return ModelParts::of(input.model.shape, input.model.rotation.from, input.model.parents.count,
                          input.query_count);
}

PieceSizes sizes_of(const BuildMemoryPlan& plan) {
    const EncodeInput& input = *plan.input;
    const int participants = plan.workers + 1;
    PieceSizes sizes = {};
    sizes.bytes[piece_shared] =
        add_size(BUFFERALIGN(sizeof(SharedBuild)),
                 table_parallelscan_estimate(plan.table.heap, plan.snapshot));
    sizes.bytes[piece_sort] = tuplesort_estimate_shared(participants);
    sizes.bytes[piece_model] = parts_of(input).floats() * sizeof(float);
    sizes.bytes[piece_neighbors] =
        kept_neighbors(input.query_count) * participants * sizeof(Neighbor);
    sizes.bytes[piece_query_text] = query_text_bytes();
    sizes.bytes[piece_wal_usage] = mul_size(sizeof(WalUsage), plan.workers);
    sizes.bytes[piece_buffer_usage] = mul_size(sizeof(BufferUsage), plan.workers);
    sizes.bytes[piece_pool] = pool_bytes(plan);
    sizes.bytes[piece_curve] =
        SharedCurve::bytes(input.query_count, input.model.shape.dims, input.model.shape.lists);
    return sizes;
}

template <typename T>
T* find_piece(shm_toc* toc, Piece piece, bool may_be_absent = false) {
    return static_cast<T*>(shm_toc_lookup(toc, first_key + piece, may_be_absent));
}

void init_shared(SharedBuild* shared, const BuildMemoryPlan& plan) {
    memset(static_cast<void*>(shared), 0, sizeof(SharedBuild));
    shared->heap = RelationGetRelid(plan.table.heap);
    shared->index = RelationGetRelid(plan.table.index);
    shared->concurrent = plan.table.info->ii_Concurrent;
    shared->participants = plan.workers + 1;
    shared->sort_memory = maintenance_work_mem / shared->participants;
    shared->shape = plan.input->model.shape;
    shared->rotated_from = plan.input->model.rotation.from;
    shared->parents = plan.input->model.parents.count;
    shared->query_count = plan.input->query_count;
    shared->refinement = plan.input->refinement;
    ConditionVariableInit(&shared->done_condition);
    init_tasks(&shared->tasks);
    SpinLockInit(&shared->mutex);
    table_parallelscan_initialize(plan.table.heap, scan_of(shared), plan.snapshot);
}

void copy_model(float* to, const EncodeInput& input) {
    const ModelParts parts = parts_of(input);
    static_assert(sizeof(float) == sizeof(*input.model.parents.first));
    const auto put = [&to](const void* from, Size floats) {
        if (floats > 0) memcpy(to, from, floats * sizeof(float));
        to += floats;
    };
    put(input.model.centroids, parts.centroids);
    put(input.model.codebook, parts.codebook);
    put(input.model.rotation.matrix, parts.rotation);
    put(input.model.parents.centroids, parts.parents);
    put(input.model.parents.first, parts.parents_first);
    put(input.queries, parts.queries);
}

}  // namespace

Size pool_bytes(const BuildMemoryPlan& plan) {
    if (!plan.has_pool) return 0;
    return block_pool_bytes(plan.pool.blocks, plan.pool.block_rows, plan.input->row());
}

void estimate_build_memory(ParallelContext* context, const BuildMemoryPlan& plan) {
    for (const Size size : sizes_of(plan).bytes) {
        shm_toc_estimate_chunk(&context->estimator, size);
        shm_toc_estimate_keys(&context->estimator, 1);
    }
}

BuildMemory make_build_memory(ParallelContext* context, const BuildMemoryPlan& plan) {
    const PieceSizes sizes = sizes_of(plan);
    void* pieces[piece_count];
    for (int i = 0; i < piece_count; ++i) {
        pieces[i] = shm_toc_allocate(context->toc, sizes.bytes[i]);
        // Absent keys: no queries, no query text, or no pool because the workers encode.
        if (sizes.bytes[i] > 0) shm_toc_insert(context->toc, first_key + i, pieces[i]);
    }
    init_shared(static_cast<SharedBuild*>(pieces[piece_shared]), plan);
    tuplesort_initialize_shared(static_cast<Sharedsort*>(pieces[piece_sort]), plan.workers + 1,
                                context->seg);
    copy_model(static_cast<float*>(pieces[piece_model]), *plan.input);
    if (sizes.bytes[piece_query_text] > 0)
        memcpy(pieces[piece_query_text], debug_query_string, sizes.bytes[piece_query_text]);
    if (plan.has_pool)
        init_block_pool(pieces[piece_pool], plan.pool.blocks, plan.pool.block_rows,
                        plan.input->row());
    init_curve(static_cast<SharedCurve*>(pieces[piece_curve]));
    return find_build_memory(context->toc);
}

BuildMemory find_build_memory(shm_toc* toc) {
    BuildMemory memory = {};
    memory.shared = find_piece<SharedBuild>(toc, piece_shared);
    memory.sort = find_piece<Sharedsort>(toc, piece_sort);
    memory.model = find_piece<float>(toc, piece_model);
    memory.neighbors = find_piece<Neighbor>(toc, piece_neighbors, true);
    memory.query_text = find_piece<const char>(toc, piece_query_text, true);
    memory.wal_usage = find_piece<WalUsage>(toc, piece_wal_usage);
    memory.buffer_usage = find_piece<BufferUsage>(toc, piece_buffer_usage);
    memory.pool = find_piece<BlockPool>(toc, piece_pool, true);
    memory.curve = find_piece<SharedCurve>(toc, piece_curve);
    return memory;
}

ParallelTableScanDesc scan_of(SharedBuild* shared) {
    return reinterpret_cast<ParallelTableScanDesc>(reinterpret_cast<char*>(shared) +
                                                   BUFFERALIGN(sizeof(SharedBuild)));
}

EncodeInput input_of(const SharedBuild* shared, const float* model, Relation index) {
    const QuantizerShape& shape = shared->shape;
    const ModelParts parts =
        ModelParts::of(shape, shared->rotated_from, shared->parents, shared->query_count);
    const float* codebook = model + parts.centroids;
    const float* matrix = codebook + parts.codebook;
    const float* parents = matrix + parts.rotation;
    const float* first = parents + parts.parents;
    EncodeInput input{{shape, model, codebook}, first + parts.parents_first, shared->query_count,
                      type_of(index),           copy_attributes(index),      shared->refinement};
    if (shared->parents > 0)
        input.model.parents = {shared->parents, parents, reinterpret_cast<const uint32*>(first)};
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

}  // namespace pgwarp
