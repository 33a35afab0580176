#include "kernels/cuda/lists/tables.h"

#include "kernels/cuda/base/launch.cuh"
#include "kernels/cuda/lists/tables.cuh"
#include "kernels/cuda/select/warp_select.cuh"

#include <cuda_fp16.h>

namespace pgwarp::gpu {

namespace {

constexpr unsigned threads = 256;

// Queries for which a thread computes its unit with one read of the codebook.
constexpr int block_queries = 4;

template <int count>
__device__ void write_half_tables(const StoreView& store, const QueryView& queries,
                                  const TableUnit& unit, uint32_t first, uint4* tables) {
    float entry[count][4][2];
    table_entries<count>(store, queries.vectors + size_t{first} * store.model.shape.dims,
                         unit.piece, unit.code, entry);
    const size_t units = size_t{store.layout.slices} * table_units(store.layout.width);
#pragma unroll
    for (int q = 0; q < count; ++q) {
        const float shrink = 1 / table_scale(queries.norms[first + q], store.largest_word);
        uint4 packed;
        auto* half = reinterpret_cast<__half2*>(&packed);
#pragma unroll
        for (int i = 0; i < 4; ++i)
            half[i] = __floats2half2_rn(entry[q][i][0] * shrink, entry[q][i][1] * shrink);
        tables[(first + q) * units + unit.index] = packed;
    }
}

__global__ void __launch_bounds__(threads)
    half_tables(StoreView store, QueryView queries, uint4* tables) {
    const TableUnit unit(blockIdx.x * threads + threadIdx.x, store.layout.width);
    const uint32_t first = blockIdx.y * block_queries;
    if (first + block_queries <= queries.count)
        write_half_tables<block_queries>(store, queries, unit, first, tables);
    else
        for (uint32_t q = first; q < queries.count; ++q)
            write_half_tables<1>(store, queries, unit, q, tables);
}

__device__ void float_tables(const StoreView& store, const QueryView& queries, float* tables,
                             uint32_t block) {
    const uint32_t width = store.layout.width;
    const uint32_t blocks = store.layout.slices * table_units(width) / threads;  // a query
    const uint32_t query = block / blocks;
    const TableUnit unit(block % blocks * threads + threadIdx.x, width);
    float entry[1][4][2];
    table_entries<1>(store, queries.vectors + size_t{query} * store.model.shape.dims, unit.piece,
                     unit.code, entry);
    float* table = tables + size_t{query} * store.layout.slices * codewords * width;
    const uint32_t slice = unit.piece / width, column = unit.piece % width;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        const uint32_t at = (slice * codewords + unit.code + i) * width + column;
        *reinterpret_cast<float2*>(table + at) = {entry[0][i][0], entry[0][i][1]};
    }
}

// One warp computes the distances of a centroid to this many queries.
constexpr int coarse_queries = 8;

// The same for one query, by one warp for each centroid.
__device__ void coarse_distance(const StoreView& store, const QueryView& queries, uint32_t query,
                                uint32_t list) {
    const QuantizerShape& shape = store.model.shape;
    if (list >= shape.lists) return;
    const float* centroid = store.model.centroids + size_t{list} * shape.dims;
    const float* vector = queries.vectors + size_t{query} * shape.dims;
    const bool l2 = has_norms(shape.metric);
    float sum = 0;
#pragma unroll 4
    for (uint32_t d = lane_id(); d < shape.dims; d += 32) {
        const float c = __ldg(centroid + d), x = __ldg(vector + d);
        sum = l2 ? fmaf(x - c, x - c, sum) : fmaf(-x, c, sum);
    }
#pragma unroll
    for (int distance = 16; distance > 0; distance /= 2)
        sum += __shfl_xor_sync(whole_warp, sum, distance);
    if (lane_id() == 0) queries.coarse[query * queries.coarse_stride + list] = sum;
}

__device__ void coarse_distances(const StoreView& store, const QueryView& queries, uint32_t block,
                                 uint32_t list_blocks) {
    const QuantizerShape& shape = store.model.shape;
    const uint32_t list = block % list_blocks * (threads / 32) + threadIdx.x / 32;
    const uint32_t first = block / list_blocks * coarse_queries;
    if (list >= shape.lists) return;
    const float* centroid = store.model.centroids + size_t{list} * shape.dims;
    const auto count = static_cast<int>(min(uint32_t{coarse_queries}, queries.count - first));
    const bool l2 = has_norms(shape.metric);
    // With fewer queries, the last one is repeated as padding.
    const float* vector[coarse_queries];
#pragma unroll
    for (int q = 0; q < coarse_queries; ++q)
        vector[q] = queries.vectors + size_t{first + min(q, count - 1)} * shape.dims;
    float sum[coarse_queries] = {};
#pragma unroll 2
    for (uint32_t d = lane_id(); d < shape.dims; d += 32) {
        const float c = __ldg(centroid + d);
#pragma unroll
        for (int q = 0; q < coarse_queries; ++q) {
            const float x = __ldg(vector[q] + d);
            sum[q] = l2 ? fmaf(x - c, x - c, sum[q]) : fmaf(-x, c, sum[q]);
        }
    }
    // Reduces eight sums over the lanes together: each exchange halves the sums that a lane holds.
    static_assert(coarse_queries == 8);
#pragma unroll
    for (int half = coarse_queries / 2; half > 0; half /= 2) {
        const bool upper = lane_id() & 4 * half;
#pragma unroll
        for (int q = 0; q < half; ++q) {
            const float kept = upper ? sum[q + half] : sum[q];
            const float given = upper ? sum[q] : sum[q + half];
            sum[q] = kept + __shfl_xor_sync(whole_warp, given, 4 * half);
        }
    }
    sum[0] += __shfl_xor_sync(whole_warp, sum[0], 2);
    sum[0] += __shfl_xor_sync(whole_warp, sum[0], 1);
    const int query = lane_id() / 4;
    if (lane_id() % 4 == 0 && query < count)
        queries.coarse[(first + query) * queries.coarse_stride + list] = sum[0];
}

// Blocks for coarse distances first, then blocks for tables; the grid starts at block `first`.
__global__ void __launch_bounds__(threads)
    prepare(StoreView store, QueryView queries, uint32_t list_blocks, float* tables,
            uint32_t first) {
    wait_for_kernels_before();
    const uint32_t coarse_blocks =
        list_blocks * ((queries.count + coarse_queries - 1) / coarse_queries);
    const uint32_t block = blockIdx.x + first;
    if (block < coarse_blocks)
        coarse_distances(store, queries, block, list_blocks);
    else
        float_tables(store, queries, tables, block - coarse_blocks);
}

// The same for mixed queries.
__global__ void __launch_bounds__(threads)
    prepare_mixed(StoreView store, QueryView queries, uint32_t list_blocks, float* tables,
                  uint32_t first) {
    wait_for_kernels_before();
    const uint32_t coarse_blocks = list_blocks * queries.count;
    const uint32_t block = blockIdx.x + first;
    if (block < coarse_blocks) {
        const uint32_t query = block / list_blocks;
        coarse_distance(queries.stores[query], queries, query,
                        block % list_blocks * (threads / 32) + threadIdx.x / 32);
        return;
    }
    const uint32_t table_blocks = store.layout.slices * table_units(store.layout.width) / threads;
    const uint32_t query = (block - coarse_blocks) / table_blocks;
    float_tables(queries.stores[query], queries, tables, block - coarse_blocks);
}

}  // namespace

void build_half_tables(const StoreView& store, const QueryView& queries, uint4* tables,
                       cudaStream_t stream) {
    const auto units = static_cast<unsigned>(half_table_units(store.layout));
    launch("half_tables", half_tables,
           {dim3(units / threads, divide_up(queries.count, uint32_t{block_queries})), threads, 0,
            stream},
           store, queries, tables);
}

void prepare_small_batch(const StoreView& store, const QueryView& queries, Preparation what,
                         float* tables, Turn turn) {
    const uint32_t list_blocks = divide_up(store.model.shape.lists, threads / 32);
    const bool mixed = queries.stores != nullptr;
    const uint32_t coarse_blocks =
        list_blocks * (mixed ? queries.count : divide_up(queries.count, uint32_t{coarse_queries}));
    const auto units = static_cast<uint32_t>(half_table_units(store.layout));
    const uint32_t all_blocks = coarse_blocks + queries.count * (units / threads);
    const uint32_t begin = what == Preparation::tables ? coarse_blocks : 0;
    const uint32_t end = what == Preparation::coarse ? coarse_blocks : all_blocks;
    launch("prepare", mixed ? prepare_mixed : prepare, {end - begin, threads, 0, turn}, store,
           queries, list_blocks, tables, begin);
}

}  // namespace pgwarp::gpu
