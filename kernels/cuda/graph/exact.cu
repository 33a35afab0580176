#include "kernels/cuda/graph/exact.h"

#include "kernels/cuda/select/block_sort.cuh"
#include "kernels/cuda/graph/distance.cuh"
#include "kernels/cuda/base/launch.cuh"
#include "kernels/cuda/products/products.h"
#include "kernels/cuda/select/select.h"
#include "kernels/cuda/train/sums.h"

#include <algorithm>
#include <stdexcept>

namespace pgwarp::gpu {

namespace {

// Queries of a block: a team of 32 threads is one of four warps of its block, a larger one is the
// block.
template <int threads>
constexpr unsigned team_rows = threads == 32 ? 4 : 1;

template <int threads, int items>
__global__ void __launch_bounds__(threads == 32 ? 128 : threads)
    score_candidates(CandidateLists c) {
    const uint32_t thread = threadIdx.x % threads, team = threadIdx.x / threads;
    const uint32_t query = blockIdx.x * team_rows<threads> + team;
    if (query >= c.queries) return;
    const auto sync = [] {
        if constexpr (threads == 32)
            __syncwarp();
        else
            __syncthreads();
    };
    uint64_t* all = shared_memory<uint64_t>() + team * threads * items;
    const uint32_t row = c.numbers ? c.numbers[query] : c.first + query;
    uint64_t* list = c.lists + size_t{row} * c.degree;
    for (uint32_t i = thread / 32; i < threads * items; i += threads / 32) {
        uint64_t key = no_key;
        if (i < c.candidates) {
            key = c.keys[size_t{query} * c.candidates + i];
            const uint32_t other = key_index(key);
            if (key != no_key && other != row)
                key = make_key(fminf(row_distance(c.view, row, other), 0x1.fffffep127f), other);
            else
                key = no_key;
        } else if (c.merge && i - c.candidates < c.degree) {
            key = list[i - c.candidates];
            const uint32_t other = edge_row(key);
            if (other >= c.others.begin && other < c.others.end) key = no_key;
        }
        if (lane_id() == 0) all[i] = key;
    }
    sync();
    uint64_t item[items];
#pragma unroll
    for (int i = 0; i < items; ++i) item[i] = all[i * threads + thread];
    sync();
    block_sort<threads, items>(item, all);
#pragma unroll
    for (int i = 0; i < items; ++i) {
        const uint32_t at = thread * items + i;
        if (at < c.degree) list[at] = item[i] == no_key ? no_edge() : item[i];
    }
}

template <int threads, int items>
void launch_score(const CandidateLists& c, cudaStream_t stream) {
    constexpr unsigned rows = team_rows<threads>;
    launch("score_candidates", score_candidates<threads, items>,
           {divide_up(c.queries, rows), threads == 32 ? 128 : threads,
            rows * threads * items * sizeof(uint64_t), stream},
           c);
}

struct Instance {
    uint32_t keys;  // at most
    void (*launch)(const CandidateLists&, cudaStream_t);
};
constexpr Instance instances[] = {
    {32, launch_score<32, 1>},   {64, launch_score<32, 2>},    {128, launch_score<32, 4>},
    {512, launch_score<128, 4>}, {2048, launch_score<256, 8>}, {8192, launch_score<512, 16>},
};

// Distances from the rows themselves, without products; one tile of 64 by 64 per block.
struct PlainTile {
    const float* queries;  // (query_count)(stride)
    uint32_t query_count;
    const float* rows;  // (row_count)(stride)
    uint32_t row_count;
    uint32_t dims, stride;
    float* out;  // (query_count)(out_stride)
    size_t out_stride;
};

constexpr int side = 64;
constexpr int step = 32;  // dimensions at a time

template <Metric metric>
__global__ void __launch_bounds__(256) plain_distances(PlainTile t) {
    __shared__ float a[side][step + 1], b[side][step + 1];
    const uint32_t first_query = blockIdx.y * side, first_row = blockIdx.x * side;
    const uint32_t i0 = threadIdx.x / 16, j0 = threadIdx.x % 16;
    float sums[4][4] = {};
    for (uint32_t first = 0; first < t.dims; first += step) {
        __syncthreads();
        for (uint32_t at = threadIdx.x; at < side * step; at += 256) {
            const uint32_t r = at / step, d = first + at % step;
            const auto value = [&](const float* from, uint32_t row, uint32_t count) {
                return row < count && d < t.dims ? from[size_t{row} * t.stride + d] : 0.0f;
            };
            a[r][at % step] = value(t.queries, first_query + r, t.query_count);
            b[r][at % step] = value(t.rows, first_row + r, t.row_count);
        }
        __syncthreads();
#pragma unroll 8
        for (int d = 0; d < step; ++d)
#pragma unroll
            for (int i = 0; i < 4; ++i)
#pragma unroll
                for (int j = 0; j < 4; ++j)
                    sums[i][j] = add_term<metric>(sums[i][j], a[i0 + 16 * i][d], b[j0 + 16 * j][d]);
    }
#pragma unroll
    for (int i = 0; i < 4; ++i)
#pragma unroll
        for (int j = 0; j < 4; ++j) {
            const uint32_t query = first_query + i0 + 16 * i, row = first_row + j0 + 16 * j;
            if (query < t.query_count && row < t.row_count)
                t.out[query * t.out_stride + row] = sums[i][j];
        }
}

// Rows are compared by differences; those of cosine have unit length.
decltype(&plain_distances<Metric::l2>) plain_kernel(Metric metric) {
    switch (metric) {
        case Metric::l2:
        case Metric::cosine:
            return &plain_distances<Metric::l2>;
        case Metric::inner_product:
            return &plain_distances<Metric::inner_product>;
        case Metric::l1:
            return &plain_distances<Metric::l1>;
    }
    throw std::logic_error("unknown metric");
}

void launch_plain(Metric metric, const PlainTile& tile, cudaStream_t stream) {
    const dim3 blocks(divide_up(tile.row_count, uint32_t{side}),
                      divide_up(tile.query_count, uint32_t{side}));
    launch("plain_distances", plain_kernel(metric), {blocks, 256, 0, stream}, tile);
}

// Finds queries whose list may miss a neighbor. Products have a bounded error: a row that is no
// candidate may be nearer than the list's last neighbor by no more than that error.
struct ProductCheck {
    GraphView view;
    const float* vectors;     // (queries)(stride)
    const uint32_t* numbers;  // as in CandidateLists
    uint32_t first;
    uint32_t queries;
    const float* origin;     // (dims), or null
    const uint32_t* scales;  // bits of the largest magnitude: of the queries, then of each row tile
    uint32_t tiles;
    const uint64_t* keys;  // (queries)(candidates)
    uint32_t candidates;
    uint32_t degree;
    const uint64_t* lists;
    uint32_t* unproven;  // rows
    uint32_t* count;
};

// One warp per query.
__global__ void __launch_bounds__(256) find_unproven_by_products(ProductCheck p) {
    const uint32_t query = (blockIdx.x * 256 + threadIdx.x) / 32;
    if (query >= p.queries) return;
    uint32_t farthest = 0, missing = 0;
    for (uint32_t i = lane_id(); i < p.candidates; i += 32) {
        const uint64_t key = p.keys[size_t{query} * p.candidates + i];
        if (key == no_key)
            missing = 1;
        else
            farthest = max(farthest, static_cast<uint32_t>(key >> 32));
    }
    // Free places are left, so every row is a candidate.
    if (__any_sync(whole_warp, missing)) return;
    const float least = ordered_value(__reduce_max_sync(whole_warp, farthest));
    uint32_t largest = 0;
    for (uint32_t i = lane_id(); i < p.tiles; i += 32) largest = max(largest, p.scales[1 + i]);
    const float largest_row = bits_float(__reduce_max_sync(whole_warp, largest));
    const float largest_query = bits_float(p.scales[0]);
    const float* vector = p.vectors + size_t{query} * p.view.stride;
    float norm = 0;
    for (uint32_t d = lane_id(); d < p.view.dims; d += 32) {
        const float x = vector[d] - (p.origin ? p.origin[d] : 0.0f);
        norm = fmaf(x, x, norm);
    }
    norm = sum_of_lanes(norm);
    const uint32_t row = p.numbers ? p.numbers[query] : p.first + query;
    const uint64_t last = p.lists[size_t{row} * p.degree + p.degree - 1];
    const float length = sqrtf(norm);
    bool sure = false;
    if (edge_row(last) != no_row && p.view.centred()) {
        const float distance =
            p.view.metric == Metric::cosine ? 2 * key_value(last) : key_value(last);
        // A row that is nearer has at most this norm. Norms have the same error as products.
        const float reach = length + sqrtf(distance);
        const float error =
            product_error(length + reach, length + reach, largest_query, largest_row, p.view.dims);
        sure = distance <= 0 || least + norm - distance >= error;
    } else if (edge_row(last) != no_row) {
        const float longest = sqrtf(static_cast<float>(p.view.dims)) * largest_row;
        const float error = product_error(length, longest, largest_query, largest_row, p.view.dims);
        sure = least - key_value(last) >= error;
    }
    if (lane_id() == 0 && !sure) p.unproven[atomicAdd(p.count, 1u)] = row;
}

// One more than the degree for the row itself; the others because products may order near ties
// differently than exact distances do.
uint32_t neighbor_candidates(uint32_t degree) {
    return std::min(max_running_k, degree + 1 + std::max(16u, degree / 8));
}

struct TileShape {
    size_t queries, rows;

    TileShape(const GraphView& view, uint32_t candidates, size_t query_count, size_t row_count,
              size_t scratch) {
        const size_t row_bytes = split_width(view.dims) * sizeof(__half) + sizeof(float);
        const size_t query_bytes =
            row_bytes + view.stride * sizeof(float) + candidates * sizeof(uint64_t);
        rows = std::min<size_t>(padded_rows(row_count), 65536);
        // The allocator works in large segments, and leaves a part of them unused.
        scratch -= std::min(scratch / 4, size_t{128} << 20);
        while (true) {
            const size_t fixed =
                rows * row_bytes + query_count * sizeof(uint32_t) + (size_t{1} << 16);
            const size_t each = query_bytes + rows * sizeof(float);
            queries = scratch > fixed ? std::min(query_count, (scratch - fixed) / each) : 0;
            // Narrower tiles are better than few queries at a time.
            if (queries >= std::min<size_t>(query_count, 1024) || rows <= 1024) break;
            rows = padded_rows(rows / 2);
        }
        // Bounds how long an interrupt waits.
        queries = std::clamp<size_t>(queries, 1, 16384);
    }
};

enum class Values { products, plain };

// Finds candidates tile by tile, for the queries in `numbers`, or for consecutive rows if it is
// null. If `unproven` is not null, unproven[0] counts rows whose list may miss a neighbor, and
// their numbers follow.
void search_by_tiles(const Context& context, const Blas& blas, cudaStream_t stream,
                     const ExactWork& work, Values way, const uint32_t* numbers, size_t query_count,
                     uint32_t* unproven) {
    const GraphView& view = work.view;
    const uint32_t candidates = neighbor_candidates(work.degree);
    const TileShape shape(view, candidates, query_count, work.others.size(), context.scratch());
    const bool products = way == Values::products, centred = products && view.centred();
    const size_t tiles = divide_up<size_t>(work.others.size(), std::max<size_t>(shape.rows, 1));
    DeviceMemory& memory = context.memory;
    const uint32_t width = products ? split_width(view.dims) : 0;
    Buffer<__half> query_halves(memory, shape.queries * width);
    Buffer<__half> row_halves(memory, shape.rows * width);
    Buffer<float> norms(memory, shape.rows);
    Buffer<float> values(memory, shape.queries * shape.rows);
    Buffer<uint64_t> keys(memory, shape.queries * candidates);
    Buffer<float> gathered(memory, numbers ? shape.queries * view.stride : 0);
    Buffer<uint32_t> scales(memory, 1 + tiles);
    Buffer<float> factors(memory, 2);
    Buffer<float> origin(memory, centred ? view.dims : 0);
    const FinishStream finish(stream);
    if (centred)
        find_origin({view.rows, view.count, view.dims, view.stride}, origin.data(), stream);
    for (size_t first_query = 0; first_query < query_count; first_query += shape.queries) {
        const auto queries =
            static_cast<uint32_t>(std::min(shape.queries, query_count - first_query));
        if (work.progress && !numbers) work.progress(first_query);
        const uint32_t begin = work.queries.begin + static_cast<uint32_t>(first_query);
        const uint32_t* own_numbers = numbers ? numbers + first_query : nullptr;
        const float* vectors = view.row(begin);
        if (numbers) {
            gather_rows(view.rows, view.stride, own_numbers, queries, gathered.data(), stream);
            vectors = gathered.data();
        }
        if (products)
            split_rows({vectors, queries, view.dims, view.stride, origin.data()}, Side::left,
                       query_halves.data(), scales.data(), nullptr, stream);
        fill_keys(keys.data(), size_t{queries} * candidates, no_key, stream);
        for (size_t tile = 0; tile < tiles; ++tile) {
            // An interrupt waits for at most eight tiles.
            if (tile % 8 == 7) check(cudaStreamSynchronize(stream), "exact_lists");
            context.check_interrupt();
            const size_t first = tile * shape.rows;
            const auto rows =
                static_cast<uint32_t>(std::min(shape.rows, work.others.size() - first));
            const float* others = view.row(work.others.begin + static_cast<uint32_t>(first));
            if (products) {
                uint32_t* scale = scales + 1 + tile;
                split_rows({others, rows, view.dims, view.stride, origin.data()}, Side::right,
                           row_halves.data(), scale, norms.data(), stream);
                multiply(blas, stream, {query_halves.data(), scales.data(), queries},
                         {row_halves.data(), scale, rows}, view.dims, centred ? -2.0f : -1.0f,
                         values.data(), shape.rows, factors.data());
            } else {
                launch_plain(view.metric,
                             {vectors, queries, others, rows, view.dims, view.stride, values.data(),
                              shape.rows},
                             stream);
            }
            select_running(
                {values.data(), shape.rows, queries, rows, centred ? norms.data() : nullptr,
                 work.others.begin + static_cast<uint32_t>(first), candidates, keys.data()},
                stream);
        }
        finish_candidates({view, own_numbers, begin, queries, keys.data(), candidates, work.degree,
                           work.lists, work.merge, work.others},
                          stream);
        if (unproven)
            launch("find_unproven_by_products", find_unproven_by_products,
                   {divide_up(queries, 8u), 256, 0, stream},
                   ProductCheck{view, vectors, own_numbers, begin, queries, origin.data(),
                                scales.data(), static_cast<uint32_t>(tiles), keys.data(),
                                candidates, work.degree, work.lists, unproven + 1, unproven});
        check(cudaStreamSynchronize(stream), "exact_lists");
    }
}

}  // namespace

void plain_values(const GraphView& view, const RowRange& a, const RowRange& b, float* values,
                  size_t stride, cudaStream_t stream) {
    launch_plain(view.metric,
                 {view.row(a.begin), a.size(), view.row(b.begin), b.size(), view.dims, view.stride,
                  values, stride},
                 stream);
}

void finish_candidates(const CandidateLists& c, cudaStream_t stream) {
    const uint32_t keys = c.candidates + (c.merge ? c.degree : 0);
    for (const Instance& instance : instances) {
        if (std::max(keys, c.degree) > instance.keys) continue;
        instance.launch(c, stream);
        return;
    }
    refuse("lists are too long for a device");
}

void exact_lists_of(const Context& context, const Blas& blas, cudaStream_t stream,
                    const ExactWork& work, const uint32_t* numbers, uint32_t count) {
    if (count == 0) return;
    if (!has_products(work.view.metric)) {
        search_by_tiles(context, blas, stream, work, Values::plain, numbers, count, nullptr);
        return;
    }
    Buffer<uint32_t> unproven(context.memory, 1 + size_t{count});
    const FinishStream finish(stream);
    clear_async(unproven.data(), 1, stream);
    search_by_tiles(context, blas, stream, work, Values::products, numbers, count, unproven.data());
    uint32_t unproven_count = 0;
    copy_async(&unproven_count, static_cast<const uint32_t*>(unproven.data()), 1, stream);
    check(cudaStreamSynchronize(stream), "exact_lists");
    // Neighbors that are much nearer to each other than to most rows: the error of products exceeds
    // the differences between their distances. Search these without products.
    if (unproven_count > 0)
        search_by_tiles(context, blas, stream, work, Values::plain, unproven + 1, unproven_count,
                        nullptr);
}

}  // namespace pgwarp::gpu
