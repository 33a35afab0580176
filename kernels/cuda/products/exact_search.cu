#include "kernels/cuda/products/exact_search.h"

#include "kernels/cuda/select/block_select.cuh"
#include "kernels/cuda/base/launch.cuh"
#include "kernels/cuda/select/neighbor.cuh"
#include "kernels/cuda/products/products.h"
#include "kernels/cuda/select/select.h"

#include <algorithm>
#include <stdexcept>
#include <string>

namespace pgwarp::gpu {

namespace {

// The check that the candidates contain the k nearest. Candidates are selected by products, which
// have a rounding error. A row that is not a candidate cannot be nearer than the last candidate's
// approximate distance less that error. If the k-th exact distance is below this, the result is
// exact.
struct Doubt {
    uint32_t* queries =
        nullptr;  // queries to search again exactly are appended here; null: no check
    uint32_t* count;
    uint32_t first;          // number of the first query
    const float* origin;     // (dims), or null
    const uint32_t* scales;  // bits of the largest magnitude: of the queries, then of each row tile
    uint32_t tiles;
    uint32_t rows;  // of all tiles
};

struct Rescoring {
    const float* queries;
    const float* rows;
    const uint64_t* ids;
    uint32_t dims;
    bool l2;
    uint32_t k;
    uint32_t candidates;   // per query
    const uint64_t* keys;  // (query)(candidates)
    Neighbor* nearest;     // (query)(k)
    bool merge;
    const uint32_t* numbers = nullptr;  // queries to rescore; null: all
    Doubt doubt = {};
};

constexpr IdKey no_neighbor{~0u, ~0u, ~0u};

// Keys with an index from here on belong to rows of earlier add() calls, which were re-scored and
// may be gone: only their distances remain, as bounds for new rows. no_key is one of them.
constexpr uint32_t first_stale = 0x80000000u;

// Called by a warp. Returns the distance of one row, computed from the vectors.
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

// Merges the sorted `found` and the sorted `before`: an element's position in the result is its own
// position plus the number of elements of the other array that precede it.
__device__ void merge_sorted(const IdKey* found, uint32_t found_count, const Neighbor* before,
                             IdKey* before_keys, Neighbor* out, uint32_t k) {
    for (uint32_t i = threadIdx.x; i < k; i += blockDim.x)
        before_keys[i] = id_key(before[i].distance, before[i].id);
    __syncthreads();
    const auto put = [&](uint32_t at, const IdKey& key) {
        if (at < k) put_neighbor(out + at, key);
    };
    // Among equals, those of `before` come first.
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

// Called by a warp. Returns whether no row outside the candidates can be nearer than `kth`. `last`
// is the largest approximate distance of a candidate. Errors up to 2^-15 of the distance are
// accepted.
__device__ bool leaves_no_doubt(const Rescoring& r, const float* query, float last, float kth) {
    uint32_t largest_row = 0;
    for (uint32_t i = lane_id(); i < r.doubt.tiles; i += 32)
        largest_row = max(largest_row, r.doubt.scales[1 + i]);
    largest_row = __reduce_max_sync(whole_warp, largest_row);
    float norm = 0;
    for (uint32_t d = lane_id(); d < r.dims; d += 32) {
        const float x = query[d] - (r.doubt.origin ? r.doubt.origin[d] : 0.0f);
        norm = fmaf(x, x, norm);
    }
#pragma unroll
    for (int distance = 16; distance > 0; distance /= 2)
        norm += __shfl_xor_sync(whole_warp, norm, distance);
    const float largest_left = bits_float(r.doubt.scales[0]);
    const float largest_right = bits_float(largest_row);
    const float length = sqrtf(norm);
    if (!r.l2) {
        const float longest = sqrtf(static_cast<float>(r.dims)) * largest_right;
        const float error = product_error(length, longest, largest_left, largest_right, r.dims);
        return last - kth >= error || error <= 0x1p-15f * fabsf(kth);
    }
    if (kth <= 0) return true;
    // The norm of a nearer row is at most `reach`. The norms have the same error as the products.
    const float reach = length + sqrtf(kth);
    const float error =
        product_error(length + reach, length + reach, largest_left, largest_right, r.dims);
    return last + norm - kth >= error || error <= 0x1p-15f * kth;
}

// One block per query: re-scores the candidates, sorts them, and merges them with earlier results.
template <int threads, int items>
__global__ void __launch_bounds__(threads) rescore(Rescoring r) {
    IdKey* found = shared_memory<IdKey>();  // (threads * items), then (k) for merging
    __shared__ uint32_t found_count, last;
    __shared__ float kth;
    __shared__ bool doubted;
    const size_t place = blockIdx.x;
    const size_t query = r.numbers ? r.numbers[place] : place;
    const float* vector = r.queries + query * r.dims;
    if (threadIdx.x == 0) {
        found_count = last = 0;
        kth = bits_float(infinity_bits);
        doubted = false;
    }
    __syncthreads();
    for (uint32_t i = threadIdx.x / 32; i < threads * items; i += threads / 32) {
        const uint64_t key = i < r.candidates ? r.keys[place * r.candidates + i] : no_key;
        const bool is_row = key_index(key) < first_stale;
        IdKey scored = no_neighbor;
        if (is_row) {
            const uint32_t row = key_index(key);
            const float distance =
                exact_distance(vector, r.rows + size_t{row} * r.dims, r.dims, r.l2);
            scored = id_key(distance, r.ids ? r.ids[row] : row);
        }
        if (lane_id() == 0) {
            found[i] = scored;
            if (is_row) {
                atomicAdd(&found_count, 1u);
                atomicMax(&last, static_cast<uint32_t>(key >> 32));
            }
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
    if (r.doubt.queries && found_count < r.doubt.rows) {
#pragma unroll
        for (int i = 0; i < items; ++i)
            if (threadIdx.x * items + i == r.k - 1 && r.k <= found_count)
                kth = ordered_value(item[i].distance);
        __syncthreads();
        if (threadIdx.x < 32) {
            const float before = r.merge ? out[r.k - 1].distance : kth;
            // Fewer candidates than room for them means that some products were NaN.
            const bool sure = found_count == r.candidates &&
                              leaves_no_doubt(r, vector, ordered_value(last), fminf(kth, before));
            if (threadIdx.x == 0 && !sure) {
                r.doubt.queries[atomicAdd(r.doubt.count, 1u)] =
                    r.doubt.first + static_cast<uint32_t>(query);
                doubted = true;
            }
        }
        __syncthreads();
        if (doubted) return;  // earlier results stay unchanged
    }
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

// Replaces each index by one that is unique in its row, so that keys stay distinct.
__global__ void make_stale(uint64_t* keys, size_t count, uint32_t candidates) {
    for (size_t i = size_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count;
         i += size_t{gridDim.x} * blockDim.x)
        if (keys[i] != no_key)
            keys[i] = (keys[i] & ~uint64_t{0xffffffffu}) | (first_stale + i % candidates);
}

__global__ void no_neighbors(Neighbor* nearest, size_t count) {
    for (size_t i = size_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count;
         i += size_t{gridDim.x} * blockDim.x)
        put_neighbor(nearest + i, {ordered_bits(bits_float(infinity_bits)), ~0u, ~0u});
}

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

// Rounding errors of the products may reorder near ties, so more than k candidates are re-scored.
uint32_t candidates_for(uint32_t k) {
    return std::min(max_running_k, k + std::max(16u, k / 8));
}

struct Tiles {
    size_t queries, rows;

    Tiles(const DeviceExactSearch& s, size_t scratch) {
        const size_t row_bytes = split_width(s.dims) * sizeof(__half) + sizeof(float);
        const size_t query_bytes = row_bytes + candidates_for(s.k) * sizeof(uint64_t);
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
struct SearchSpace {
    Buffer<__half> query_halves, row_halves;
    Buffer<float> norms, products;
    Buffer<uint64_t> keys;
    Buffer<uint32_t> scales, doubtful;
    Buffer<float> factors, origin;
};

// Searches the queries with the given numbers again, from differences of the vectors, where the
// products were not accurate enough. Causes: neighbors that are much closer to each other than to
// most rows, or elements of very different magnitudes.
void search_plainly(const Context& context, cudaStream_t stream, const DeviceExactSearch& s,
                    const Tiles& tiles, const SearchSpace& space, const uint32_t* numbers,
                    size_t count) {
    const uint32_t candidates = candidates_for(s.k);
    const bool l2 = has_norms(s.metric);
    for (size_t begin = 0; begin < count; begin += tiles.queries) {
        const auto queries = static_cast<uint32_t>(std::min(tiles.queries, count - begin));
        launch("set_keys", set_keys, {1056, 256, 0, stream}, space.keys.data(),
               queries * size_t{candidates});
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
        rescore_all({s.queries, s.rows, s.ids, s.dims, l2, s.k, candidates, space.keys.data(),
                     s.nearest, s.merge, numbers + begin},
                    queries, stream);
    }
    check(cudaStreamSynchronize(stream), "search_plainly");
}

}  // namespace

void exact_search(const Context& context, const Blas& blas, cudaStream_t stream,
                  const DeviceExactSearch& s) {
    if (s.query_count == 0) return;
    const uint32_t candidates = candidates_for(s.k);
    const bool l2 = has_norms(s.metric);
    const Tiles tiles(s, context.scratch());
    DeviceMemory& memory = context.memory;
    const uint32_t width = split_width(s.dims);
    const size_t row_tiles = divide_up(s.row_count, std::max<size_t>(tiles.rows, 1));
    // The origin is a point among the queries, so that L2 distances stay accurate far from zero.
    SearchSpace space{{memory, tiles.queries * width},
                      {memory, tiles.rows * width},
                      {memory, tiles.rows},
                      {memory, tiles.queries * tiles.rows},
                      {memory, tiles.queries * candidates},
                      {memory, 1 + row_tiles},
                      {memory, 1 + s.query_count},
                      {memory, 2},
                      {memory, l2 ? s.dims : 0}};
    auto& [query_halves, row_halves, norms, products, keys, scales, doubtful, factors, origin] =
        space;
    const FinishStream finish(stream);
    clear_async(doubtful.data(), 1, stream);

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
        rescore_all({vectors, s.rows, s.ids, s.dims, l2, s.k, candidates, keys.data(),
                     s.nearest + first_query * s.k, s.merge, nullptr,
                     Doubt{doubtful + 1, doubtful.data(), static_cast<uint32_t>(first_query),
                           origin.data(), scales.data(), static_cast<uint32_t>(row_tiles),
                           static_cast<uint32_t>(s.row_count)}},
                    queries, stream);
    }
    uint32_t doubts = 0;
    check(cudaMemcpyAsync(&doubts, doubtful.data(), sizeof(doubts), cudaMemcpyDeviceToHost, stream),
          "cudaMemcpyAsync");
    check(cudaStreamSynchronize(stream), "exact_search");
    if (doubts > 0) search_plainly(context, stream, s, tiles, space, doubtful + 1, doubts);
}

// All queries are split once, relative to one origin; each tile of rows is split once, too. Then
// the products of each tile of queries and a tile of rows are computed and selected from.
RunningSearch::RunningSearch(const Context& context, const Blas& blas, cudaStream_t stream,
                             const Shape& shape)
    : context_(context), blas_(blas), stream_(stream), shape_(shape) {
    if (shape.k == 0 || shape.k > max_exact_k)
        throw std::runtime_error("exact search on a device finds at most " +
                                 std::to_string(max_exact_k) + " neighbours");
    const bool l2 = has_norms(shape.metric);
    const uint32_t candidates = candidates_for(shape.k);
    const uint32_t width = split_width(shape.dims);
    DeviceMemory& memory = context.memory;
    nearest_ = Buffer<Neighbor>(memory, shape.query_count * shape.k);
    keys_ = Buffer<uint64_t>(memory, shape.query_count * candidates);

    by_tiles_ = fits_tiles(context, shape.dims);
    const auto whole = by_tiles_ ? pair_rows : padded_rows;
    tile_rows_ = std::clamp(whole(shape.most_rows), whole(1), exact_tile_rows);
    // Larger tiles are not faster, and other operations need memory too.
    constexpr size_t most_tile_bytes = size_t{512} << 20;
    const size_t room = std::min(context.scratch() / 2, most_tile_bytes);
    const size_t row_bytes = width * sizeof(__half) + sizeof(float);
    while (true) {
        const size_t fixed = tile_rows_ * row_bytes;
        tile_queries_ = room > fixed ? std::min(shape.query_count,
                                                (room - fixed) / (tile_rows_ * sizeof(float)))
                                     : 0;
        if (tile_queries_ >= std::min<size_t>(shape.query_count, 1024) || tile_rows_ <= 1024) break;
        tile_rows_ = whole(tile_rows_ / 2);
    }
    tile_queries_ = std::min(tile_queries_, (size_t{1} << 31) / tile_rows_);
    // A view must begin at a tile: several query tiles are multiples of pair_rows(1).
    if (by_tiles_ && tile_queries_ < shape.query_count)
        tile_queries_ = tile_queries_ / pair_rows(1) * pair_rows(1);
    tile_queries_ = std::max(tile_queries_, by_tiles_ ? pair_rows(1) : 1);
    products_ = Buffer<float>(memory, std::min(tile_queries_, shape.query_count) * tile_rows_);
    own_origin_ = Buffer<float>(memory, l2 && !shape.origin ? shape.dims : 0);
    origin_ = shape.origin ? shape.origin : own_origin_.data();
    const FloatMatrix queries{shape.queries, shape.query_count, shape.dims, shape.dims, origin_};
    if (own_origin_.size() > 0) find_origin(queries, own_origin_.data(), stream);
    if (by_tiles_) {
        query_pairs_.grow(memory, shape.query_count, shape.dims);
        query_pairs_.split(queries, Scales::own, stream);
    } else {
        query_halves_ = Buffer<__half>(memory, shape.query_count * width);
        row_halves_ = Buffer<__half>(memory, tile_rows_ * width);
        norms_ = Buffer<float>(memory, tile_rows_);
        scales_ = Buffer<uint32_t>(memory, 2);
        factors_ = Buffer<float>(memory, 2);
        split_rows(queries, Side::left, query_halves_.data(), scales_.data(), nullptr, stream);
    }
    // Start without neighbors: this is the result of a query with fewer than k rows.
    launch("no_neighbors", no_neighbors, {1056, 256, 0, stream}, nearest_.data(), nearest_.size());
    launch("set_keys", set_keys, {1056, 256, 0, stream}, keys_.data(), keys_.size());
}

void RunningSearch::split_tile(const float* rows, size_t count) {
    const FloatMatrix matrix{rows, count, shape_.dims, shape_.dims, origin_};
    if (by_tiles_) {
        row_pairs_.grow(context_.memory, tile_rows_, shape_.dims);
        row_pairs_.split(matrix, Scales::own, stream_);
    } else {
        split_rows(matrix, Side::right, row_halves_.data(), scales_ + 1, norms_.data(), stream_);
    }
}

// Computes the products of some queries and a tile of rows. For long vectors only rows.count is
// used.
void RunningSearch::multiply_tile(size_t first_query, size_t queries, const PairView& rows) {
    const float factor = product_factor(shape_.metric);
    if (by_tiles_)
        multiply_by_tiles(context_, query_pairs_.view(first_query, queries), rows, factor,
                          products_.data(), tile_rows_, stream_);
    else
        multiply(blas_, stream_,
                 {query_halves_ + first_query * split_width(shape_.dims), scales_.data(), queries},
                 {row_halves_.data(), scales_ + 1, rows.count}, shape_.dims, factor,
                 products_.data(), tile_rows_, factors_.data());
}

void RunningSearch::add(const float* rows, const uint64_t* ids, size_t count,
                        const PairMatrix* pairs) {
    if (count == 0) return;
    const uint32_t candidates = candidates_for(shape_.k);
    const bool l2 = has_norms(shape_.metric);
    if (merge_)
        launch("make_stale", make_stale, {1056, 256, 0, stream_}, keys_.data(), keys_.size(),
               candidates);
    for (size_t first = 0; first < count; first += tile_rows_) {
        const size_t here = std::min(tile_rows_, count - first);
        if (!pairs) split_tile(rows + first * shape_.dims, here);
        PairView tile{nullptr, nullptr, norms_.data(), here, shape_.dims};
        if (by_tiles_) tile = pairs ? pairs->view(first, here) : row_pairs_.view();
        for (size_t query = 0; query < shape_.query_count; query += tile_queries_) {
            const size_t queries = std::min(tile_queries_, shape_.query_count - query);
            multiply_tile(query, queries, tile);
            select_running({products_.data(), tile_rows_, static_cast<uint32_t>(queries),
                            static_cast<uint32_t>(here), l2 ? tile.norms : nullptr,
                            static_cast<uint32_t>(first), candidates, keys_ + query * candidates},
                           stream_);
        }
    }
    // The number of blocks of a grid is limited to 2^31 - 1.
    constexpr size_t most_blocks = size_t{1} << 30;
    for (size_t query = 0; query < shape_.query_count; query += most_blocks)
        rescore_all(
            {shape_.queries + query * shape_.dims, rows, ids, shape_.dims, l2, shape_.k, candidates,
             keys_ + query * candidates, nearest_.data() + query * shape_.k, merge_},
            std::min(most_blocks, shape_.query_count - query), stream_);
    merge_ = true;
}

}  // namespace pgwarp::gpu
