#include "kernels/cuda/products/exact_search.h"

#include "kernels/cuda/base/launch.cuh"
#include "kernels/cuda/products/products.h"
#include "kernels/cuda/select/select.h"

#include <algorithm>

namespace pgwarp::gpu {

namespace {

// A block computes the distances of `square` queries and `square` rows from differences of the
// vectors, `depth` dimensions at a time.
constexpr uint32_t square = 64;
constexpr uint32_t depth = 16;
__global__ void __launch_bounds__(256)
    plain_distances(const float* queries, const uint32_t* numbers, uint32_t query_count,
                    const float* rows, uint32_t row_count, uint32_t dims, bool l2, float* values,
                    size_t stride) {
    __shared__ float left[depth][square + 1], right[depth][square + 1];
    const uint32_t first_query = blockIdx.y * square, first_row = blockIdx.x * square;
    const uint32_t mine_left = threadIdx.x / 16, mine_right = threadIdx.x % 16;
    float sums[4][4] = {};
    for (uint32_t begin = 0; begin < dims; begin += depth) {
        for (uint32_t i = threadIdx.x; i < square * depth; i += 256) {
            const uint32_t which = i / depth, d = i % depth;
            const bool inside = begin + d < dims;
            const uint32_t query = first_query + which, row = first_row + which;
            left[d][which] = inside && query < query_count
                                 ? queries[size_t{numbers[query]} * dims + begin + d]
                                 : 0.0f;
            right[d][which] =
                inside && row < row_count ? rows[size_t{row} * dims + begin + d] : 0.0f;
        }
        __syncthreads();
#pragma unroll
        for (uint32_t d = 0; d < depth; ++d)
#pragma unroll
            for (uint32_t i = 0; i < 4; ++i)
#pragma unroll
                for (uint32_t j = 0; j < 4; ++j) {
                    const float q = left[d][mine_left + 16 * i], x = right[d][mine_right + 16 * j];
                    const float off = q - x;
                    sums[i][j] = l2 ? fmaf(off, off, sums[i][j]) : fmaf(-q, x, sums[i][j]);
                }
        __syncthreads();
    }
#pragma unroll
    for (uint32_t i = 0; i < 4; ++i)
#pragma unroll
        for (uint32_t j = 0; j < 4; ++j) {
            const uint32_t query = first_query + mine_left + 16 * i;
            const uint32_t row = first_row + mine_right + 16 * j;
            if (query < query_count && row < row_count) values[query * stride + row] = sums[i][j];
        }
}

struct Tiles {
    size_t queries, rows;

    Tiles(const DeviceExactSearch& s, size_t scratch) {
        const size_t row_bytes = split_width(s.dims) * sizeof(__half) + sizeof(float);
        const size_t query_bytes = row_bytes + candidates_to_rescore(s.k) * sizeof(uint64_t);
        rows = std::min(padded_rows(s.row_count), exact_tile_rows);
        while (true) {
            const size_t fixed = rows * row_bytes + s.query_count * sizeof(uint32_t) + (1 << 16);
            const size_t each = query_bytes + rows * sizeof(float);
            queries = scratch > fixed ? std::min(s.query_count, (scratch - fixed) / each) : 0;
            // Prefer narrower tiles to fewer than 1024 queries at a time.
            if (queries >= std::min<size_t>(s.query_count, 1024) || rows <= 1024) break;
            rows = padded_rows(rows / 2);
        }
        queries = std::max<size_t>(queries, 1);
        // The index of an element of the tile must fit an int.
        queries = std::min(queries, (size_t{1} << 31) / std::max<size_t>(rows, 1));
    }
};

// Device memory of a search.
struct ExactSearchSpace {
    Buffer<__half> query_halves, row_halves;
    Buffer<float> norms, products;
    Buffer<uint64_t> keys;
    Buffer<uint32_t> scales, unproven;
    Buffer<float> factors, origin;
};

// Searches the queries with the given numbers again, from differences of the vectors, where the
// products were not accurate enough. Causes: neighbors that are much closer to each other than to
// most rows, or elements of very different magnitudes.
void search_plainly(const Context& context, cudaStream_t stream, const DeviceExactSearch& s,
                    const Tiles& tiles, const ExactSearchSpace& space, const uint32_t* numbers,
                    size_t count) {
    const uint32_t candidates = candidates_to_rescore(s.k);
    const bool l2 = has_norms(s.metric);
    for (size_t begin = 0; begin < count; begin += tiles.queries) {
        const auto queries = static_cast<uint32_t>(std::min(tiles.queries, count - begin));
        clear_keys(space.keys.data(), queries * size_t{candidates}, stream);
        for (size_t first = 0; first < s.row_count; first += tiles.rows) {
            context.check_interrupt();
            const auto rows = static_cast<uint32_t>(std::min(tiles.rows, s.row_count - first));
            launch("plain_distances", plain_distances,
                   {dim3(divide_up(rows, square), divide_up(queries, square)), 256, 0, stream},
                   s.queries, numbers + begin, queries, s.rows + first * s.dims, rows, s.dims, l2,
                   space.products.data(), tiles.rows);
            select_running({space.products.data(), tiles.rows, queries, rows, nullptr,
                            static_cast<uint32_t>(first), candidates, space.keys.data()},
                           stream);
        }
        rescore({s.queries, s.rows, s.ids, s.dims, l2, s.k, candidates, space.keys.data(),
                 s.nearest, s.merge, numbers + begin},
                queries, stream);
    }
    check(cudaStreamSynchronize(stream), "search_plainly");
}

}  // namespace

void exact_search(const Context& context, const Blas& blas, cudaStream_t stream,
                  const DeviceExactSearch& s) {
    if (s.query_count == 0) return;
    const uint32_t candidates = candidates_to_rescore(s.k);
    const bool l2 = has_norms(s.metric);
    const Tiles tiles(s, context.scratch());
    DeviceMemory& memory = context.memory;
    const uint32_t width = split_width(s.dims);
    const size_t row_tiles = divide_up(s.row_count, std::max<size_t>(tiles.rows, 1));
    // The origin is a point among the queries, so that L2 distances stay accurate far from zero.
    ExactSearchSpace space{{memory, tiles.queries * width},
                           {memory, tiles.rows * width},
                           {memory, tiles.rows},
                           {memory, tiles.queries * tiles.rows},
                           {memory, tiles.queries * candidates},
                           {memory, 1 + row_tiles},
                           {memory, 1 + s.query_count},
                           {memory, 2},
                           {memory, l2 ? s.dims : 0}};
    auto& [query_halves, row_halves, norms, products, keys, scales, unproven, factors, origin] =
        space;
    const FinishStream finish(stream);
    clear_async(unproven.data(), 1, stream);

    for (size_t first_query = 0; first_query < s.query_count; first_query += tiles.queries) {
        const size_t queries = std::min(tiles.queries, s.query_count - first_query);
        const float* vectors = s.queries + first_query * s.dims;
        if (l2) find_origin({vectors, queries, s.dims, s.dims}, origin.data(), stream);
        split_rows({vectors, queries, s.dims, s.dims, origin.data()}, Side::left,
                   query_halves.data(), scales.data(), nullptr, stream);
        clear_keys(keys.data(), queries * candidates, stream);
        for (size_t first = 0; first < s.row_count; first += tiles.rows) {
            context.check_interrupt();
            const size_t rows = std::min(tiles.rows, s.row_count - first);
            if (s.ready) s.ready(first + rows);
            uint32_t* scale = scales + 1 + first / tiles.rows;
            split_rows({s.rows + first * s.dims, rows, s.dims, s.dims, origin.data()}, Side::right,
                       row_halves.data(), scale, norms.data(), stream);
            multiply(blas, stream, {query_halves.data(), scales.data(), queries},
                     {row_halves.data(), scale, rows}, s.dims, l2 ? -2.0f : -1.0f, products.data(),
                     tiles.rows, factors.data());
            select_running({products.data(), tiles.rows, static_cast<uint32_t>(queries),
                            static_cast<uint32_t>(rows), l2 ? norms.data() : nullptr,
                            static_cast<uint32_t>(first), candidates, keys.data()},
                           stream);
        }
        rescore(
            {vectors, s.rows, s.ids, s.dims, l2, s.k, candidates, keys.data(),
             s.nearest + first_query * s.k, s.merge, nullptr,
             CompletenessCheck{unproven + 1, unproven.data(), static_cast<uint32_t>(first_query),
                               origin.data(), scales.data(), static_cast<uint32_t>(row_tiles),
                               static_cast<uint32_t>(s.row_count)}},
            queries, stream);
    }
    uint32_t unproven_count = 0;
    check(cudaMemcpyAsync(&unproven_count, unproven.data(), sizeof(unproven_count),
                          cudaMemcpyDeviceToHost, stream),
          "cudaMemcpyAsync");
    check(cudaStreamSynchronize(stream), "exact_search");
    if (unproven_count > 0)
        search_plainly(context, stream, s, tiles, space, unproven + 1, unproven_count);
}

}  // namespace pgwarp::gpu
