#include "kernels/cuda/exact_search.h"

#include "kernels/cuda/block_select.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/neighbor.cuh"
#include "kernels/cuda/products.h"
#include "kernels/cuda/select.h"

#include <algorithm>
#include <stdexcept>
#include <string>

namespace pgwarp::gpu {

namespace {

struct Rescoring {
    const float* queries;
    const float* rows;
    const uint64_t* ids;
    uint32_t dims;
    bool l2;
    uint32_t k;
    uint32_t candidates;   // a query
    const uint64_t* keys;  // (query)(candidates)
    Neighbor* nearest;     // (query)(k)
    bool merge;
};

constexpr IdKey no_neighbor{~0u, ~0u, ~0u};

// A warp: the distance of one row, from the vectors.
__device__ float exact_distance(const float* query, const float* row, uint32_t dims, bool l2) {
    float sum = 0;
    for (uint32_t d = lane_id(); d < dims; d += 32) {
        const float q = __ldg(query + d), x = __ldg(row + d);
        const float off = q - x;
        sum = l2 ? fmaf(off, off, sum) : fmaf(-q, x, sum);
    }
#pragma unroll
    for (int distance = 16; distance > 0; distance /= 2)
        sum += __shfl_xor_sync(whole_warp, sum, distance);
    return sum;
}

__device__ IdKey id_key(float distance, uint64_t id) {
    return {ordered_bits(distance), static_cast<uint32_t>(id >> 32), static_cast<uint32_t>(id)};
}

// Where the sorted `found` and the sorted `before` meet: each element's place in the whole is its
// own place plus how many of the others come before it.
__device__ void merge_sorted(const IdKey* found, uint32_t found_count, const Neighbor* before,
                             IdKey* before_keys, Neighbor* out, uint32_t k) {
    for (uint32_t i = threadIdx.x; i < k; i += blockDim.x)
        before_keys[i] = id_key(before[i].distance, before[i].id);
    __syncthreads();
    const auto put = [&](uint32_t at, const IdKey& key) {
        if (at < k) put_neighbor(out + at, key);
    };
    // Of equals, those found before come first.
    for (uint32_t i = threadIdx.x; i < found_count; i += blockDim.x) {
        uint32_t low = 0, high = k;
        while (low < high) {
            const uint32_t middle = (low + high) / 2;
            if (found[i] < before_keys[middle])
                high = middle;
            else
                low = middle + 1;
        }
        put(i + low, found[i]);
    }
    for (uint32_t i = threadIdx.x; i < k; i += blockDim.x) {
        uint32_t low = 0, high = found_count;
        while (low < high) {
            const uint32_t middle = (low + high) / 2;
            if (found[middle] < before_keys[i])
                low = middle + 1;
            else
                high = middle;
        }
        put(i + low, before_keys[i]);
    }
}

// A block a query: candidates re-scored, sorted, and merged with what was found before.
template <int threads, int items>
__global__ void __launch_bounds__(threads) rescore(Rescoring r) {
    IdKey* found = shared_memory<IdKey>();  // (threads * items), then (k) for merging
    __shared__ uint32_t found_count;
    const size_t query = blockIdx.x;
    const float* vector = r.queries + query * r.dims;
    if (threadIdx.x == 0) found_count = 0;
    __syncthreads();
    for (uint32_t i = threadIdx.x / 32; i < threads * items; i += threads / 32) {
        const uint64_t key = i < r.candidates ? r.keys[query * r.candidates + i] : no_key;
        IdKey scored = no_neighbor;
        if (key != no_key) {
            const uint32_t row = key_index(key);
            const float distance =
                exact_distance(vector, r.rows + size_t{row} * r.dims, r.dims, r.l2);
            scored = id_key(distance, r.ids ? r.ids[row] : row);
        }
        if (lane_id() == 0) {
            found[i] = scored;
            if (key != no_key) atomicAdd(&found_count, 1u);
        }
    }
    __syncthreads();
    IdKey item[items];
#pragma unroll
    for (int i = 0; i < items; ++i) item[i] = found[i * threads + threadIdx.x];
    __syncthreads();
    block_sort<threads, items>(item, found);
    __syncthreads();
    Neighbor* out = r.nearest + query * r.k;
    const uint32_t count = min(found_count, r.k);
    if (!r.merge) {
#pragma unroll
        for (int i = 0; i < items; ++i) {
            const uint32_t at = threadIdx.x * items + i;
            if (at < count) put_neighbor(out + at, item[i]);
        }
        for (uint32_t i = count + threadIdx.x; i < r.k; i += threads)
            put_neighbor(out + i, {ordered_bits(bits_float(infinity_bits)), ~0u, ~0u});
        return;
    }
#pragma unroll
    for (int i = 0; i < items; ++i) found[threadIdx.x * items + i] = item[i];
    __syncthreads();
    merge_sorted(found, count, out, found + threads * items, out, r.k);
}

template <int threads, int items>
void launch_rescore(const Rescoring& rescoring, size_t queries, cudaStream_t stream) {
    const size_t keys = threads * items + (rescoring.merge ? rescoring.k : 0);
    launch("rescore", rescore<threads, items>,
           {static_cast<unsigned>(queries), threads, keys * sizeof(IdKey), stream}, rescoring);
}

void rescore_all(const Rescoring& rescoring, size_t queries, cudaStream_t stream) {
    auto* launch_it = &launch_rescore<512, 8>;
    if (rescoring.candidates <= 128)
        launch_it = &launch_rescore<128, 1>;
    else if (rescoring.candidates <= 1024)
        launch_it = &launch_rescore<256, 4>;
    launch_it(rescoring, queries, stream);
}

__global__ void set_keys(uint64_t* keys, size_t count) {
    for (size_t i = size_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count;
         i += size_t{gridDim.x} * blockDim.x)
        keys[i] = no_key;
}

__global__ void no_neighbors(Neighbor* nearest, size_t count) {
    for (size_t i = size_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count;
         i += size_t{gridDim.x} * blockDim.x)
        put_neighbor(nearest + i, {ordered_bits(bits_float(infinity_bits)), ~0u, ~0u});
}

// The products are off by some 2^-21 |q||x|, so that the order of near ties may differ from that
// of the re-scored distances: the candidates are some more than wanted.
uint32_t candidates_for(uint32_t k) {
    return std::min(max_running_k, k + std::max(16u, k / 8));
}

struct Tiles {
    size_t queries, rows;

    Tiles(const DeviceExactSearch& s, size_t scratch) {
        const size_t row_bytes = split_width(s.dims) * sizeof(__half) + sizeof(float);
        const size_t query_bytes = row_bytes + candidates_for(s.k) * sizeof(uint64_t);
        rows = std::min((s.row_count + 3) / 4 * 4, exact_tile_rows);
        while (true) {
            const size_t fixed = rows * row_bytes + (1 << 16);
            const size_t each = query_bytes + rows * sizeof(float);
            queries = scratch > fixed ? std::min(s.query_count, (scratch - fixed) / each) : 0;
            // Better narrower tiles than a handful of queries at a time.
            if (queries >= std::min<size_t>(s.query_count, 1024) || rows <= 1024) break;
            rows = rows / 8 * 4;
        }
        queries = std::max<size_t>(queries, 1);
        // A row of the tile must be a multiple of 16 bytes, and its number fit an int.
        queries = std::min(queries, (size_t{1} << 31) / std::max<size_t>(rows, 1));
    }
};

}  // namespace

void exact_search(const Context& context, const Blas& blas, cudaStream_t stream,
                  const DeviceExactSearch& s) {
    if (s.query_count == 0) return;
    const uint32_t candidates = candidates_for(s.k);
    const bool l2 = s.metric != Metric::inner_product;
    const Tiles tiles(s, context.scratch());
    DeviceMemory& memory = context.memory;
    const uint32_t width = split_width(s.dims);
    Buffer<__half> query_halves(memory, tiles.queries * width);
    Buffer<__half> row_halves(memory, tiles.rows * width);
    Buffer<float> norms(memory, tiles.rows);
    Buffer<float> products(memory, tiles.queries * tiles.rows);
    Buffer<uint64_t> keys(memory, tiles.queries * candidates);
    Buffer<uint32_t> scales(memory, 2);
    Buffer<float> factors(memory, 2);
    // Distances are taken from amidst the queries, so that they are right far from zero too.
    Buffer<float> origin(memory, l2 ? s.dims : 0);
    const FinishStream finish(stream);

    for (size_t first_query = 0; first_query < s.query_count; first_query += tiles.queries) {
        const size_t queries = std::min(tiles.queries, s.query_count - first_query);
        const float* vectors = s.queries + first_query * s.dims;
        if (l2) find_origin({vectors, queries, s.dims, s.dims}, origin.data(), stream);
        split_rows({vectors, queries, s.dims, s.dims, origin.data()}, Side::left,
                   query_halves.data(), scales.data(), nullptr, stream);
        launch("set_keys", set_keys, {1056, 256, 0, stream}, keys.data(), queries * candidates);
        for (size_t first = 0; first < s.row_count; first += tiles.rows) {
            context.check_interrupt();
            const size_t rows = std::min(tiles.rows, s.row_count - first);
            if (s.ready) s.ready(first + rows);
            split_rows({s.rows + first * s.dims, rows, s.dims, s.dims, origin.data()}, Side::right,
                       row_halves.data(), scales + 1, norms.data(), stream);
            multiply(blas, stream, {query_halves.data(), scales.data(), queries},
                     {row_halves.data(), scales + 1, rows}, s.dims, l2 ? -2.0f : -1.0f,
                     products.data(), tiles.rows, factors.data());
            select_running({products.data(), tiles.rows, static_cast<uint32_t>(queries),
                            static_cast<uint32_t>(rows), l2 ? norms.data() : nullptr,
                            static_cast<uint32_t>(first), candidates, keys.data()},
                           stream);
        }
        rescore_all({vectors, s.rows, s.ids, s.dims, l2, s.k, candidates, keys.data(),
                     s.nearest + first_query * s.k, s.merge},
                    queries, stream);
    }
    check(cudaStreamSynchronize(stream), "exact_search");
}

// All queries are split once, by one scale and from one origin, and so is each tile of rows; the
// products of a tile of queries and one of rows are what is made and selected from in turn.
RunningSearch::RunningSearch(const Context& context, const Blas& blas, cudaStream_t stream,
                             const Shape& shape)
    : blas_(blas), stream_(stream), shape_(shape) {
    if (shape.k == 0 || shape.k > max_exact_k)
        throw std::runtime_error("exact search on a device finds at most " +
                                 std::to_string(max_exact_k) + " neighbours");
    const bool l2 = shape.metric != Metric::inner_product;
    const uint32_t candidates = candidates_for(shape.k);
    const uint32_t width = split_width(shape.dims);
    DeviceMemory& memory = context.memory;
    nearest_ = Buffer<Neighbor>(memory, shape.query_count * shape.k);
    query_halves_ = Buffer<__half>(memory, shape.query_count * width);
    keys_ = Buffer<uint64_t>(memory, shape.query_count * candidates);

    tile_rows_ = std::min((shape.most_rows + 3) / 4 * 4, exact_tile_rows);
    // More products at a time gain nothing, and others want memory too.
    constexpr size_t most_tile_bytes = size_t{512} << 20;
    const size_t room = std::min(context.scratch() / 2, most_tile_bytes);
    const size_t row_bytes = width * sizeof(__half) + sizeof(float);
    while (true) {
        const size_t fixed = tile_rows_ * row_bytes;
        tile_queries_ = room > fixed ? std::min(shape.query_count,
                                                (room - fixed) / (tile_rows_ * sizeof(float)))
                                     : 0;
        if (tile_queries_ >= std::min<size_t>(shape.query_count, 1024) || tile_rows_ <= 1024) break;
        tile_rows_ = tile_rows_ / 8 * 4;
    }
    tile_queries_ = std::max<size_t>(tile_queries_, 1);
    tile_queries_ = std::min(tile_queries_, (size_t{1} << 31) / tile_rows_);
    row_halves_ = Buffer<__half>(memory, tile_rows_ * width);
    norms_ = Buffer<float>(memory, tile_rows_);
    products_ = Buffer<float>(memory, tile_queries_ * tile_rows_);
    scales_ = Buffer<uint32_t>(memory, 2);
    factors_ = Buffer<float>(memory, 2);
    origin_ = Buffer<float>(memory, l2 ? shape.dims : 0);

    if (l2)
        find_origin({shape.queries, shape.query_count, shape.dims, shape.dims}, origin_.data(),
                    stream);
    split_rows({shape.queries, shape.query_count, shape.dims, shape.dims, origin_.data()},
               Side::left, query_halves_.data(), scales_.data(), nullptr, stream);
    // As if no row had been near: what a query ends with where there are fewer than k.
    launch("no_neighbors", no_neighbors, {1056, 256, 0, stream}, nearest_.data(), nearest_.size());
}

void RunningSearch::add(const float* rows, const uint64_t* ids, size_t count) {
    if (count == 0) return;
    const uint32_t candidates = candidates_for(shape_.k);
    const bool l2 = shape_.metric != Metric::inner_product;
    const uint32_t width = split_width(shape_.dims);
    launch("set_keys", set_keys, {1056, 256, 0, stream_}, keys_.data(), keys_.size());
    for (size_t first = 0; first < count; first += tile_rows_) {
        const size_t here = std::min(tile_rows_, count - first);
        split_rows({rows + first * shape_.dims, here, shape_.dims, shape_.dims, origin_.data()},
                   Side::right, row_halves_.data(), scales_ + 1, norms_.data(), stream_);
        for (size_t query = 0; query < shape_.query_count; query += tile_queries_) {
            const size_t queries = std::min(tile_queries_, shape_.query_count - query);
            multiply(blas_, stream_, {query_halves_ + query * width, scales_.data(), queries},
                     {row_halves_.data(), scales_ + 1, here}, shape_.dims, l2 ? -2.0f : -1.0f,
                     products_.data(), tile_rows_, factors_.data());
            select_running({products_.data(), tile_rows_, static_cast<uint32_t>(queries),
                            static_cast<uint32_t>(here), l2 ? norms_.data() : nullptr,
                            static_cast<uint32_t>(first), candidates, keys_ + query * candidates},
                           stream_);
        }
    }
    // A grid has fewer blocks than there may be queries.
    constexpr size_t most_blocks = size_t{1} << 30;
    for (size_t query = 0; query < shape_.query_count; query += most_blocks)
        rescore_all(
            {shape_.queries + query * shape_.dims, rows, ids, shape_.dims, l2, shape_.k, candidates,
             keys_ + query * candidates, nearest_.data() + query * shape_.k, merge_},
            std::min(most_blocks, shape_.query_count - query), stream_);
    merge_ = true;
}

}  // namespace pgwarp::gpu
