// A block computes the distances of tile_lists centroids to tile_queries queries, a thread 4 x 4 of
// them, from slices of both in shared memory: each number read from there is used four times, where
// a warp that takes a centroid for itself reads a query's numbers anew for each.
#include "kernels/cuda/lists/coarse_tiles.h"

#include "kernels/cuda/base/launch.cuh"

namespace pgwarp::gpu {

namespace {

constexpr unsigned threads = 256;
constexpr uint32_t tile_lists = 64, tile_queries = 64;
constexpr uint32_t slice = 16;  // dimensions in shared memory at a time
constexpr uint32_t each = 4;    // lists and queries of a thread
static_assert(tile_lists / each * (tile_queries / each) == threads);

// (dimension)(row), so that a thread reads four rows at once. The padding keeps 16-byte alignment
// and spreads the writes over the banks.
struct Slice {
    float values[slice][tile_lists + each];

    __device__ void load(const float* rows, uint32_t count, uint32_t dims, uint32_t first_dim) {
        for (uint32_t i = threadIdx.x; i < slice * tile_lists; i += threads) {
            const uint32_t row = i / slice, d = i % slice;
            const bool is_there = row < count && first_dim + d < dims;
            // Zeros on both sides add nothing to a distance.
            values[d][row] = is_there ? __ldg(rows + size_t{row} * dims + first_dim + d) : 0.0f;
        }
    }
    __device__ float4 four(uint32_t d, uint32_t row) const {
        return *reinterpret_cast<const float4*>(&values[d][row]);
    }
};
static_assert(tile_lists == tile_queries);

template <bool l2>
__global__ void __launch_bounds__(threads) distances(StoreView store, QueryView queries) {
    __shared__ __align__(16) Slice centroids, vectors;
    wait_for_kernels_before();
    const uint32_t lists = store.model.shape.lists, dims = store.model.shape.dims;
    const uint32_t first_list = blockIdx.x * tile_lists, first_query = blockIdx.y * tile_queries;
    const uint32_t list = threadIdx.x % (tile_lists / each) * each;
    const uint32_t query = threadIdx.x / (tile_lists / each) * each;
    float sum[each][each] = {};  // (query)(list)
    for (uint32_t first_dim = 0; first_dim < dims; first_dim += slice) {
        __syncthreads();
        centroids.load(store.model.centroids + size_t{first_list} * dims, lists - first_list, dims,
                       first_dim);
        vectors.load(queries.vectors + size_t{first_query} * dims, queries.count - first_query,
                     dims, first_dim);
        __syncthreads();
#pragma unroll
        for (uint32_t d = 0; d < slice; ++d) {
            const float4 c = centroids.four(d, list), x = vectors.four(d, query);
            const float cs[each] = {c.x, c.y, c.z, c.w}, xs[each] = {x.x, x.y, x.z, x.w};
#pragma unroll
            for (uint32_t i = 0; i < each; ++i)
#pragma unroll
                for (uint32_t j = 0; j < each; ++j)
                    sum[i][j] = l2 ? fmaf(xs[i] - cs[j], xs[i] - cs[j], sum[i][j])
                                   : fmaf(-xs[i], cs[j], sum[i][j]);
        }
    }
#pragma unroll
    for (uint32_t i = 0; i < each; ++i) {
        if (first_query + query + i >= queries.count) break;
        float* to = queries.coarse + (first_query + query + i) * queries.coarse_stride + first_list;
#pragma unroll
        for (uint32_t j = 0; j < each; ++j)
            if (first_list + list + j < lists) to[list + j] = sum[i][j];
    }
}

}  // namespace

bool coarse_takes_tiles(const StoreView& store, const QueryView& queries) {
    // A tile takes longer than a warp of the other kernel; a hundred of them fill the device.
    constexpr uint32_t enough = 128;
    return !queries.stores && queries.count >= tile_queries / 4 &&
           divide_up(store.model.shape.lists, tile_lists) *
                   divide_up(queries.count, tile_queries) >=
               enough;
}

void coarse_by_tiles(const StoreView& store, const QueryView& queries, Turn turn) {
    const dim3 blocks(divide_up(store.model.shape.lists, tile_lists),
                      divide_up(queries.count, tile_queries));
    launch("coarse_by_tiles",
           has_norms(store.model.shape.metric) ? distances<true> : distances<false>,
           {blocks, threads, 0, turn}, store, queries);
}

}  // namespace pgwarp::gpu
