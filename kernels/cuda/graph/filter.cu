// A block keeps 128 queries in half precision in registers, and reads all rows in tiles of 64. It
// prefetches the next tiles while it multiplies one. Each query has a sorted list of the 32 nearest
// rows so far, and a queue of rows nearer than the last of these. When a queue is half full, a warp
// merges it into the list.

#include "kernels/cuda/graph/filter.h"

#include "kernels/cuda/graph/distance.cuh"
#include "kernels/cuda/base/launch.cuh"
#include "kernels/cuda/products/products.h"

#include <cuda_pipeline_primitives.h>

#include <algorithm>

namespace pgwarp::gpu {

namespace {

constexpr int threads = 256;
constexpr int block_queries = 128;
constexpr int tile_rows = 64;
constexpr int stages = 3;  // tiles in shared memory
constexpr int kept = 32;
constexpr int queue = 16;
constexpr uint32_t max_dims = 128;
constexpr uint32_t max_degree = 24;
constexpr uint32_t min_rows = 2048;

struct HalfRows {
    GraphView view;
    const float* origin;  // (dims), or null
    uint32_t width;       // elements of a row of halves, a multiple of 16
    uint32_t* largest;    // bits of the largest magnitude
    uint32_t* longest;    // bits of the largest squared norm of a row of halves
    __half* halves;       // (view.count + block_queries)(width), padded with zero rows
    float* norms;         // (view.count + block_queries): squared norms of the halves
};

__device__ __forceinline__ float element(const HalfRows& h, const float* row, uint32_t d) {
    return h.origin ? row[d] - __ldg(h.origin + d) : row[d];
}

__global__ void __launch_bounds__(threads) largest_of_rows(HalfRows h) {
    uint32_t mine = 0;
    const size_t warps = size_t{gridDim.x} * threads / 32;
    for (size_t row = (size_t{blockIdx.x} * threads + threadIdx.x) / 32; row < h.view.count;
         row += warps)
        for (uint32_t d = lane_id(); d < h.view.dims; d += 32)
            mine =
                max(mine,
                    __float_as_uint(fabsf(element(h, h.view.row(static_cast<uint32_t>(row)), d))));
    mine = __reduce_max_sync(whole_warp, mine);
    if (lane_id() == 0 && mine > 0) atomicMax(h.largest, mine);
}

// The power of two that brings the largest magnitude to 2^14 .. 2^15.
__device__ __forceinline__ float scale_for(uint32_t largest) {
    const int exponent = static_cast<int>(largest >> 23) - 127;
    const int shift = largest == 0 ? 0 : max(-100, min(100, 14 - exponent));
    return __uint_as_float(static_cast<uint32_t>(127 + shift) << 23);
}

// One warp per row.
__global__ void __launch_bounds__(threads) make_halves(HalfRows h) {
    const size_t row = (size_t{blockIdx.x} * threads + threadIdx.x) / 32;
    if (row >= size_t{h.view.count} + block_queries) return;
    const bool there = row < h.view.count;
    const float scale = scale_for(*h.largest);
    float norm = 0;
    for (uint32_t d = lane_id(); d < h.width; d += 32) {
        const float x = there && d < h.view.dims
                            ? element(h, h.view.row(static_cast<uint32_t>(row)), d) * scale
                            : 0.0f;
        const __half half = __float2half_rn(x);
        norm = fmaf(__half2float(half), __half2float(half), norm);
        h.halves[row * h.width + d] = half;
    }
    norm = sum_of_lanes(norm);
    if (lane_id() != 0) return;
    h.norms[row] = norm;
    if (there) atomicMax(h.longest, __float_as_uint(norm));
}

struct Filter {
    const __half* halves;
    const float* norms;
    // value = factor * product, plus the row's squared norm if add_norms
    float factor;
    bool add_norms;
    uint32_t first_query, end_query;
    uint32_t first_row, end_row;
    const float* first_bounds;  // (end_query - first_query): only smaller values are candidates
    uint64_t* keys;             // (end_query - first_query)(kept)
};

template <int steps>
struct FilterShared {
    // 16 bytes of padding per row: the eight rows that ldmatrix reads then have no bank conflict.
    static constexpr int pitch = steps * 16 + 8;
    alignas(16) __half rows[stages][tile_rows][pitch];
    float terms[stages][tile_rows];
    uint64_t nearest[block_queries][kept];
    uint64_t queues[block_queries][queue];
    uint32_t waiting[block_queries];
    float bounds[block_queries];  // only ever lowered
};

__device__ __forceinline__ void multiply_add(float (&c)[4], const uint32_t (&a)[4], uint32_t b0,
                                             uint32_t b1) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, "
        "{%8,%9}, {%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

__device__ __forceinline__ void load_matrices(uint32_t (&to)[4], const __half* row) {
    const auto address = static_cast<uint32_t>(__cvta_generic_to_shared(row));
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "r"(address));
}

// A warp merges a query's queue into its list of the nearest.
template <class Shared>
__device__ void merge_queue(Shared& s, uint32_t query) {
    const uint32_t count = min(s.waiting[query], static_cast<uint32_t>(queue));
    LaneStrideArray<2> array;
    array.key[0] = s.nearest[query][lane_id()];
    array.key[1] = lane_id() < count ? s.queues[query][lane_id()] : no_key;
    array.sort_register(1);
    array.compare_reversed(0, 1);
    array.merge_register(0);
    s.nearest[query][lane_id()] = array.key[0];
    if (lane_id() == 31 && array.key[0] != no_key)
        s.bounds[query] = fminf(s.bounds[query], key_value(array.key[0]));
    __syncwarp();
    if (lane_id() == 0) s.waiting[query] = 0;
}

template <int steps>
__global__ void __launch_bounds__(threads, 2) filter_rows(Filter f) {
    using Shared = FilterShared<steps>;
    constexpr int width = steps * 16;
    Shared& s = *shared_memory<Shared>();
    const int warp = threadIdx.x / 32, g = lane_id() / 4, t = lane_id() % 4;
    const int query_part = warp / 2 * 32, row_part = warp % 2 * 32;
    const uint32_t first_query = f.first_query + blockIdx.x * block_queries;
    const float infinity = bits_float(infinity_bits);

    for (int i = threadIdx.x; i < block_queries * kept; i += threads) s.nearest[0][i] = no_key;
    if (threadIdx.x < block_queries) {
        s.waiting[threadIdx.x] = 0;
        // Padding queries accept no candidates.
        const uint32_t query = first_query + threadIdx.x;
        s.bounds[threadIdx.x] =
            query < f.end_query ? f.first_bounds[query - f.first_query] : -infinity;
    }

    // The two groups of 16 queries of this warp, all dimensions, in the fragment layout of mma.
    uint32_t a[2][steps][4];
#pragma unroll
    for (int i = 0; i < 2; ++i)
#pragma unroll
        for (int k = 0; k < steps; ++k)
#pragma unroll
            for (int v = 0; v < 4; ++v) {
                const size_t query = size_t{first_query} + query_part + i * 16 + g + v % 2 * 8;
                a[i][k][v] = __ldg(reinterpret_cast<const uint32_t*>(f.halves + query * width +
                                                                     k * 16 + t * 2 + v / 2 * 8));
            }

    const uint32_t tiles = (f.end_row - f.first_row + tile_rows - 1) / tile_rows;
    // Tiles beyond the last load nothing, but commit a pipeline stage so that the counts match.
    const auto fetch = [&](uint32_t tile) {
        const uint32_t first = f.first_row + tile * tile_rows, stage = tile % stages;
        constexpr int chunks = width / 8;
        for (int i = threadIdx.x; i < tile_rows * chunks && tile < tiles; i += threads)
            __pipeline_memcpy_async(
                &s.rows[stage][i / chunks][i % chunks * 8],
                f.halves + (size_t{first} + i / chunks) * width + i % chunks * 8, 16);
        __pipeline_commit();
        if (threadIdx.x < tile_rows && tile < tiles) {
            const uint32_t row = first + threadIdx.x;
            s.terms[stage][threadIdx.x] = row >= f.end_row ? infinity
                                          : f.add_norms    ? __ldg(f.norms + row)
                                                           : 0.0f;
        }
    };

    float sums[2][4][4];
    float bounds[2][2];
    uint32_t pending = 0;  // bits: sums that found their queue full
    bool crowded = false;  // a queue is half full
    // Queues the sums of `which` (all, or those pending) that are within the bound.
    const auto offer = [&](uint32_t tile, uint32_t which) {
        pending = 0;
#pragma unroll
        for (int i = 0; i < 2; ++i)
#pragma unroll
            for (int j = 0; j < 4; ++j)
#pragma unroll
                for (int v = 0; v < 4; ++v) {
                    const int bit = (i * 4 + j) * 4 + v;
                    const int query = query_part + i * 16 + g + v / 2 * 8;
                    const int column = row_part + j * 8 + t * 2 + v % 2;
                    const float value =
                        fmaf(f.factor, sums[i][j][v], s.terms[tile % stages][column]);
                    if (!(which >> bit & 1) || !(value < bounds[i][v / 2])) continue;
                    const uint32_t row = f.first_row + tile * tile_rows + column;
                    if (row == first_query + query) continue;
                    const uint32_t at = atomicAdd(&s.waiting[query], 1u);
                    if (at < queue)
                        s.queues[query][at] = make_key(value, row);
                    else
                        pending |= 1u << bit;
                    crowded |= at >= queue / 2;
                }
    };
    const auto load_bounds = [&] {
#pragma unroll
        for (int i = 0; i < 2; ++i)
#pragma unroll
            for (int h = 0; h < 2; ++h) bounds[i][h] = s.bounds[query_part + i * 16 + g + h * 8];
    };
    // Called by the whole block: merges queues with at least `least` entries, and queues pending
    // sums again, until none is pending.
    const auto settle = [&](uint32_t tile, uint32_t least) {
        do {
            for (int query = warp; query < block_queries; query += threads / 32)
                if (s.waiting[query] >= least) merge_queue(s, query);
            __syncthreads();
            load_bounds();
            crowded = false;
            if (pending) offer(tile, pending);
        } while (__syncthreads_or(pending != 0));
    };

    for (uint32_t tile = 0; tile < stages - 1; ++tile) fetch(tile);
    __syncthreads();
    load_bounds();
    for (uint32_t tile = 0; tile < tiles; ++tile) {
        __pipeline_wait_prior(stages - 2);
        // After this barrier the tile is loaded, and no thread reads the previous one any more,
        // except for its pending sums: settle() queues them first.
        if (__syncthreads_or(crowded)) settle(tile - 1, queue / 2);
        fetch(tile + stages - 1);
#pragma unroll
        for (int i = 0; i < 2; ++i)
#pragma unroll
            for (int j = 0; j < 4; ++j)
#pragma unroll
                for (int v = 0; v < 4; ++v) sums[i][j][v] = 0;
        const __half* rows = s.rows[tile % stages][row_part + lane_id() / 16 * 8 + lane_id() % 8] +
                             lane_id() / 8 % 2 * 8;
#pragma unroll
        for (int k = 0; k < steps; ++k) {
            uint32_t b[2][4];
            load_matrices(b[0], rows + k * 16);
            load_matrices(b[1], rows + k * 16 + 16 * Shared::pitch);
#pragma unroll
            for (int i = 0; i < 2; ++i)
#pragma unroll
                for (int j = 0; j < 4; ++j)
                    multiply_add(sums[i][j], a[i][k], b[j / 2][j % 2 * 2], b[j / 2][j % 2 * 2 + 1]);
        }
        float least[2][2] = {{infinity, infinity}, {infinity, infinity}};
#pragma unroll
        for (int j = 0; j < 4; ++j) {
            const float2 term =
                *reinterpret_cast<const float2*>(&s.terms[tile % stages][row_part + j * 8 + t * 2]);
#pragma unroll
            for (int i = 0; i < 2; ++i)
#pragma unroll
                for (int v = 0; v < 4; ++v)
                    least[i][v / 2] = fminf(least[i][v / 2],
                                            fmaf(f.factor, sums[i][j][v], v % 2 ? term.y : term.x));
        }
        crowded = false;
        if (least[0][0] < bounds[0][0] || least[0][1] < bounds[0][1] ||
            least[1][0] < bounds[1][0] || least[1][1] < bounds[1][1])
            offer(tile, ~0u);
    }
    __syncthreads();
    settle(tiles - 1, 1);
    // settle() may have queued pending sums after its last merge.
    for (int query = warp; query < block_queries; query += threads / 32)
        if (s.waiting[query] > 0) merge_queue(s, query);
    __syncthreads();
    for (int i = threadIdx.x; i < block_queries * kept; i += threads)
        if (first_query + i / kept < f.end_query)
            f.keys[size_t{first_query - f.first_query} * kept + i] = s.nearest[0][i];
}

// Norms of the rows, and the error bound of values in half precision.
struct Scales {
    GraphView view;
    const float* norms;
    const uint32_t* largest;
    const uint32_t* longest;

    // The largest value that a row at this distance can have, with `times` the error bound.
    //
    // A row of halves has an error of 2^-11 of its norm (plus what is too small for a half), and so
    // have distances between such rows. By the triangle inequality, a row at this distance has at
    // most this row's norm plus the distance. The last term covers sums in float32. Inner products
    // have an error of 2^-10 of the product of both norms.
    __device__ float value_at(uint32_t row, float distance, float times) const {
        const float scale = scale_for(*largest), norm = sqrtf(norms[row]);
        if (view.centred()) {
            const float squared = view.metric == Metric::cosine ? 2 * distance : distance;
            const float there = sqrtf(squared) * scale, length = norm + there;
            const float off = times * (0x1.1p-11f * (norm + length) + 1e-4f);
            return (there + off) * (there + off) - norms[row] + times * 0x1p-16f * length * length;
        }
        const float most = sqrtf(__uint_as_float(*longest));
        const float off = times * (0x1.1p-10f * norm * most + 1e-4f * (norm + most));
        return distance * scale * scale + off;
    }
};

__global__ void __launch_bounds__(threads)
    find_first_bounds(Scales s, const float* limits, uint32_t first, uint32_t count,
                      float* bounds) {
    const uint32_t query = blockIdx.x * threads + threadIdx.x;
    if (query >= count) return;
    const float infinity = bits_float(infinity_bits);
    const float limit = limits ? limits[first + query] : infinity;
    // Far enough beyond the limit that find_unproven() can prove a list complete that ends there.
    bounds[query] = limit < infinity ? s.value_at(first + query, limit, 2.5f) : infinity;
}

// Lists that may miss a neighbor.
struct Certainty {
    Scales scales;
    uint32_t first_query, queries;
    const uint64_t* keys;       // (queries)(kept), sorted
    const float* first_bounds;  // (queries)
    const uint64_t* lists;
    uint32_t degree;
    uint32_t* unproven;  // rows
    uint32_t* count;
};

__global__ void __launch_bounds__(threads) find_unproven(Certainty c) {
    const uint32_t query = blockIdx.x * threads + threadIdx.x;
    if (query >= c.queries) return;
    const uint32_t row = c.first_query + query;
    // A row that is no candidate has at least this value.
    const uint64_t farthest = c.keys[size_t{query} * kept + kept - 1];
    float least = c.first_bounds[query];
    if (farthest != no_key) least = fminf(least, key_value(farthest));
    if (least == bits_float(infinity_bits)) return;  // all rows are candidates
    const uint64_t last = c.lists[size_t{row} * c.degree + c.degree - 1];
    // Sure, if any row as near as the list's last has a smaller value, and so is a candidate.
    const bool sure =
        edge_row(last) != no_row && c.scales.value_at(row, key_value(last), 1.0f) < least;
    if (!sure) c.unproven[atomicAdd(c.count, 1u)] = row;
}

uint32_t steps_for(uint32_t dims) {
    return (dims + 31) / 32 * 2;
}

size_t filter_bytes(const GraphView& view, size_t chunk) {
    const size_t row_bytes = steps_for(view.dims) * 16 * sizeof(__half) + sizeof(float);
    return (size_t{view.count} + block_queries) * row_bytes + view.count * sizeof(uint32_t) +
           chunk * (kept * sizeof(uint64_t) + sizeof(float)) + (1 << 16);
}

size_t chunk_queries(const Context& context) {
    return size_t{context.processors} * 2 * 2 * block_queries;
}

template <int steps>
void launch_filter(const Filter& filter, cudaStream_t stream) {
    launch("filter_rows", filter_rows<steps>,
           {divide_up(filter.end_query - filter.first_query, uint32_t{block_queries}), threads,
            sizeof(FilterShared<steps>), stream},
           filter);
}

}  // namespace

bool filter_fits(const Context& context, const ExactWork& work) {
    return has_products(work.view.metric) && work.view.dims <= max_dims &&
           work.degree <= max_degree && work.others.size() >= min_rows &&
           filter_bytes(work.view, chunk_queries(context)) <= context.memory.available() / 2;
}

void filter_lists(const Context& context, const Blas& blas, cudaStream_t stream,
                  const ExactWork& work) {
    const GraphView& view = work.view;
    DeviceMemory& memory = context.memory;
    const uint32_t width = steps_for(view.dims) * 16;
    const size_t rows = size_t{view.count} + block_queries;
    const size_t chunk = std::min<size_t>(chunk_queries(context), work.queries.size());
    Buffer<float> origin(memory, view.centred() ? view.dims : 0);
    Buffer<__half> halves(memory, rows * width);
    Buffer<float> norms(memory, rows);
    Buffer<uint32_t> numbers(memory, 3);  // largest, longest, count of unproven rows
    Buffer<uint32_t> unproven(memory, work.queries.size());
    Buffer<uint64_t> keys(memory, chunk * kept);
    Buffer<float> first_bounds(memory, chunk);
    const FinishStream finish(stream);
    clear_async(numbers.data(), 3, stream);
    if (view.centred())
        find_origin({view.rows, view.count, view.dims, view.stride}, origin.data(), stream);
    const HalfRows half_rows{view,        origin.data(), width,       numbers.data(),
                             numbers + 1, halves.data(), norms.data()};
    launch("largest_of_rows", largest_of_rows, {1056, threads, 0, stream}, half_rows);
    launch("make_halves", make_halves,
           {static_cast<unsigned>(divide_up(rows * 32, size_t{threads})), threads, 0, stream},
           half_rows);
    const Scales scales{view, norms.data(), numbers.data(), numbers + 1};
    for (size_t first = 0; first < work.queries.size(); first += chunk) {
        context.check_interrupt();
        if (work.progress) work.progress(first);
        const auto queries = static_cast<uint32_t>(std::min(chunk, work.queries.size() - first));
        const uint32_t begin = work.queries.begin + static_cast<uint32_t>(first);
        const unsigned query_blocks = divide_up(queries, uint32_t{threads});
        launch("find_first_bounds", find_first_bounds, {query_blocks, threads, 0, stream}, scales,
               work.limits, begin, queries, first_bounds.data());
        const Filter filter{halves.data(),     norms.data(),    view.centred() ? -2.0f : -1.0f,
                            view.centred(),    begin,           begin + queries,
                            work.others.begin, work.others.end, first_bounds.data(),
                            keys.data()};
        constexpr void (*by_steps[])(const Filter&, cudaStream_t) = {
            launch_filter<2>, launch_filter<4>, launch_filter<6>, launch_filter<8>};
        by_steps[steps_for(view.dims) / 2 - 1](filter, stream);
        finish_candidates({view, nullptr, begin, queries, keys.data(), kept, work.degree,
                           work.lists, work.merge, work.others},
                          stream);
        launch("find_unproven", find_unproven, {query_blocks, threads, 0, stream},
               Certainty{scales, begin, queries, keys.data(), first_bounds.data(), work.lists,
                         work.degree, unproven.data(), numbers + 2});
        check(cudaStreamSynchronize(stream), "filter_lists");
    }
    uint32_t count = 0;
    copy_async(&count, static_cast<const uint32_t*>(numbers + 2), 1, stream);
    check(cudaStreamSynchronize(stream), "filter_lists");
    halves.reset();
    norms.reset();
    keys.reset();
    first_bounds.reset();
    exact_lists_of(context, blas, stream, work, unproven.data(), count);
}

}  // namespace pgwarp::gpu
