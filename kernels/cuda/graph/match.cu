// One block per group of rows. The block cuts the group's pairs into tiles of 32 new rows by 64
// rows of all, and gathers the rows into shared memory 64 dimensions at a time. Blocks are small,
// for high occupancy: some compute while others wait for their rows.

#include "kernels/cuda/graph/match.h"

#include "kernels/cuda/graph/trees.h"
#include "kernels/cuda/base/launch.cuh"
#include "kernels/cuda/select/warp_select.cuh"

#include <algorithm>
#include <stdexcept>

namespace pgwarp::gpu {

namespace {

constexpr int threads = 128;
constexpr int warps = threads / 32;
constexpr int tile_rows = 32;
constexpr int tile_columns = 64;
constexpr int piece = 64;                // dimensions
constexpr int width = piece + 4;         // of a row in shared memory, padded against bank conflicts
constexpr int load_threads = piece / 4;  // threads that load a row, four dimensions each

// Row numbers of a group: new ones first, then old ones.
struct Numbers {
    const uint32_t* rows;
    uint32_t fresh;
    uint32_t all;
};

struct Tile {
    float (*data)[width];
    float* terms;   // squared norms
    float* bounds;  // distance of the last neighbor in each row's list
};

template <int rows>
struct TileStorage {
    float data[rows][width];
    float terms[rows];
    float bounds[rows];

    __device__ Tile tile() { return {data, terms, bounds}; }
};

struct TileShared {
    TileStorage<tile_columns> columns;
    TileStorage<tile_rows> rows;  // unused where both begin at the same row
    uint32_t counts[warps];
    uint32_t found_count;
};

// Pairs that are near enough for one of the two rows, as indices into the tile. They overwrite the
// tile's rows and columns in shared memory, whose products are complete. Threads propose the pairs
// only after all are found: reading lists has a high latency, and all threads then wait at the same
// time. There is room for all pairs in both directions.
struct Found {
    float* distances;
    uint16_t* pairs;

    static constexpr uint32_t column_bits = 6, swapped = 1 << 11;
    __device__ explicit Found(TileShared& shared)
        : distances(&shared.columns.data[0][0]),
          pairs(reinterpret_cast<uint16_t*>(&shared.rows.data[0][0])) {}
    __device__ __forceinline__ void put(uint32_t at, float distance, uint32_t pair) const {
        distances[at] = distance;
        pairs[at] = static_cast<uint16_t>(pair);
    }
};
constexpr uint32_t max_found = 2 * tile_rows * tile_columns;
static_assert(max_found * sizeof(float) <= sizeof(TileStorage<tile_columns>::data));
static_assert(max_found * sizeof(uint16_t) <= sizeof(TileStorage<tile_rows>::data));
static_assert(tile_columns == 1 << Found::column_bits &&
              tile_rows << Found::column_bits == Found::swapped);

__device__ __forceinline__ float round_to_tf32(float x) {
    uint32_t bits;
    asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(bits) : "f"(x));
    return __uint_as_float(bits);
}

__device__ __forceinline__ void multiply_add(float (&c)[4], const uint32_t (&a)[4],
                                             const uint32_t (&b)[2]) {
    asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, "
        "{%8,%9}, {%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

// Loads dimensions [first, first + piece) of up to `most` rows from `begin` on. Tile rows beyond
// the last may hold anything: they do not change the products of other rows.
template <bool products>
__device__ void load_piece(const Matching& m, const Numbers& numbers, const float* centre,
                           uint32_t begin, uint32_t most, uint32_t first, const Tile& tile) {
    const uint32_t d = first + threadIdx.x % load_threads * 4;
    float4 c = {0, 0, 0, 0};
    if (centre && d < m.view.stride) c = __ldg(reinterpret_cast<const float4*>(centre + d));
    // All lanes of a warp run the same number of rounds: the shuffle needs the whole warp.
    const uint32_t count = min(most, numbers.all - begin);
#pragma unroll 4
    for (uint32_t base = 0; base < count; base += threads / load_threads) {
        const uint32_t r = base + threadIdx.x / load_threads;
        const bool there = r < count;
        const uint32_t number = there ? numbers.rows[begin + r] : 0;
        float4 x = {0, 0, 0, 0};
        if (there && d < m.view.stride) {
            x = __ldg(reinterpret_cast<const float4*>(m.view.row(number) + d));
            if constexpr (products) {
                x.x = round_to_tf32(x.x - c.x), x.y = round_to_tf32(x.y - c.y);
                x.z = round_to_tf32(x.z - c.z), x.w = round_to_tf32(x.w - c.w);
            }
        }
        *reinterpret_cast<float4*>(&tile.data[r][threadIdx.x % load_threads * 4]) = x;
        float square = fmaf(x.x, x.x, fmaf(x.y, x.y, fmaf(x.z, x.z, x.w * x.w)));
#pragma unroll
        for (int distance = load_threads / 2; distance > 0; distance /= 2)
            square += __shfl_xor_sync(whole_warp, square, distance);
        if (threadIdx.x % load_threads == 0) {
            tile.terms[r] = first == 0 ? square : tile.terms[r] + square;
            if (first == 0) tile.bounds[r] = there ? m.proposals.bounds[number] : 0.0f;
        }
    }
}

// The 16 values of the tile that a thread computes. visit() tells the row and column of each.
struct ProductValues {
    // [rows / 16][columns / 8], in the fragment layout of mma
    float sums[2][2][4];

    __device__ ProductValues() {
#pragma unroll
        for (auto& row : sums)
#pragma unroll
            for (auto& fragment : row)
#pragma unroll
                for (float& sum : fragment) sum = 0;
    }
    __device__ __forceinline__ void add(const Tile& rows, const Tile& columns) {
        const int g = lane_id() / 4, t = lane_id() % 4, warp = threadIdx.x / 32;
#pragma unroll
        for (int k = 0; k < piece; k += 8) {
            uint32_t a[2][4], b[2][2];
#pragma unroll
            for (int i = 0; i < 2; ++i) {
                const auto at = [&](int row, int column) {
                    return __float_as_uint(rows.data[i * 16 + row][k + column]);
                };
                a[i][0] = at(g, t), a[i][1] = at(g + 8, t);
                a[i][2] = at(g, t + 4), a[i][3] = at(g + 8, t + 4);
            }
#pragma unroll
            for (int j = 0; j < 2; ++j) {
                const float* row = columns.data[warp * 16 + j * 8 + g];
                b[j][0] = __float_as_uint(row[k + t]);
                b[j][1] = __float_as_uint(row[k + t + 4]);
            }
#pragma unroll
            for (int i = 0; i < 2; ++i)
#pragma unroll
                for (int j = 0; j < 2; ++j) multiply_add(sums[i][j], a[i], b[j]);
        }
    }
    template <class Use>
    __device__ __forceinline__ void visit(Use use) {
        const int g = lane_id() / 4, t = lane_id() % 4, warp = threadIdx.x / 32;
#pragma unroll
        for (int i = 0; i < 2; ++i)
#pragma unroll
            for (int j = 0; j < 2; ++j)
#pragma unroll
                for (int v = 0; v < 4; ++v)
                    use((i * 2 + j) * 4 + v, i * 16 + g + v / 2 * 8,
                        warp * 16 + j * 8 + t * 2 + v % 2, sums[i][j][v]);
    }
};

struct DifferenceValues {
    float sums[4][4];  // rows 4 apart from thread / 16, columns 16 apart

    __device__ DifferenceValues() {
#pragma unroll
        for (auto& row : sums)
#pragma unroll
            for (float& sum : row) sum = 0;
    }
    __device__ __forceinline__ void add(const Tile& rows, const Tile& columns) {
#pragma unroll 4
        for (int k = 0; k < piece; ++k) {
            float b[4];
#pragma unroll
            for (int j = 0; j < 4; ++j) b[j] = columns.data[threadIdx.x % 16 + 16 * j][k];
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                const float a = rows.data[threadIdx.x / 16 * 4 + i][k];
#pragma unroll
                for (int j = 0; j < 4; ++j) sums[i][j] += fabsf(a - b[j]);
            }
        }
    }
    template <class Use>
    __device__ __forceinline__ void visit(Use use) {
#pragma unroll
        for (int i = 0; i < 4; ++i)
#pragma unroll
            for (int j = 0; j < 4; ++j)
                use(i * 4 + j, threadIdx.x / 16 * 4 + i, threadIdx.x % 16 + 16 * j, sums[i][j]);
    }
};

__device__ __forceinline__ bool is_member(const ProposalView& p, uint32_t target, uint32_t other) {
    const uint32_t* words = p.members + (size_t{target} << (p.member_bits - 5));
#pragma unroll
    for (uint32_t which = 0; which < member_hashes; ++which) {
        const uint32_t bit = member_bit(target, other, which, p.member_bits);
        if (!(__ldg(words + bit / 32) >> bit % 32 & 1)) return false;
    }
    return true;
}

__device__ __forceinline__ void propose(const ProposalView& p, uint32_t target, float distance,
                                        uint32_t other) {
    if (is_member(p, target, other)) return;
    const uint64_t key = make_key(distance, other | fresh_edge);
    unsigned long long* place =
        p.places + (size_t{target} << p.place_bits) + short_hash(other, p.salt, p.place_bits);
    if (*static_cast<volatile unsigned long long*>(place) > key)
        atomicMin(place, static_cast<unsigned long long>(key));
}

// For the host, too: its compiler finds a metric that the switch lacks, nvcc does not.
PGWARP_HOST_DEVICE float distance_of(Metric metric, float value, float terms) {
    switch (metric) {
        case Metric::l2:
            return fmaxf(fmaf(-2, value, terms), 0.0f);
        case Metric::cosine:
            return fmaxf(terms / 2 - value, 0.0f);
        case Metric::inner_product:
            return -value;
        case Metric::l1:
            break;
    }
    return value;
}

// A warp reserves `mine` places for each lane by raising the shared counter. Returns the lane's
// first place.
__device__ __forceinline__ uint32_t reserve(uint32_t& count, uint32_t mine) {
    uint32_t through = mine;
#pragma unroll
    for (int distance = 1; distance < 32; distance *= 2) {
        const uint32_t before = __shfl_up_sync(whole_warp, through, distance);
        if (lane_id() >= distance) through += before;
    }
    uint32_t first = 0;
    if (lane_id() == 31) first = atomicAdd(&count, through);
    return __shfl_sync(whole_warp, first, 31) + through - mine;
}

// Called by the whole block, after a barrier that follows the writes to `numbers`.
template <class Values>
__device__ void match(const Matching& m, const Numbers& numbers, const float* centre,
                      TileShared& shared) {
    constexpr bool products = std::is_same_v<Values, ProductValues>;
    uint32_t compared = 0;
    for (uint32_t a0 = 0; a0 < numbers.fresh; a0 += tile_rows)
        for (uint32_t b0 = a0; b0 < numbers.all; b0 += tile_columns) {
            const bool same = a0 == b0;
            const Tile columns = shared.columns.tile();
            const Tile rows = same ? columns : shared.rows.tile();
            Values values;
            for (uint32_t first = 0; first < m.view.dims; first += piece) {
                __syncthreads();
                load_piece<products>(m, numbers, centre, b0, tile_columns, first, columns);
                if (!same) load_piece<products>(m, numbers, centre, a0, tile_rows, first, rows);
                __syncthreads();
                // A warp whose columns are all padding has nothing to multiply.
                if (!products || b0 + threadIdx.x / 32 * 16 < numbers.all)
                    values.add(rows, columns);
            }
            if (threadIdx.x == 0) shared.found_count = 0;
            __syncthreads();
            // Two bits per value: near enough for its row; near enough for its column.
            uint32_t near = 0;
            values.visit([&](int which, int row, int column, float& value) {
                const uint32_t i = a0 + row, j = b0 + column;
                if (i >= numbers.fresh || j >= numbers.all || j <= i) return;
                if (m.known != KnownPairs::nothing) {
                    const bool a_first = numbers.rows[i] < m.border;
                    const bool b_first = numbers.rows[j] < m.border;
                    if (m.known == KnownPairs::both_sets ? a_first == b_first : a_first && b_first)
                        return;
                }
                ++compared;
                value = distance_of(m.view.metric, value, rows.terms[row] + columns.terms[column]);
                near |= (value < rows.bounds[row] ? 1u : 0u) << 2 * which;
                near |= (value < columns.bounds[column] ? 2u : 0u) << 2 * which;
            });
            const Found found(shared);
            uint32_t at = reserve(shared.found_count, __popc(near));
            values.visit([&](int which, int row, int column, float& value) {
                const uint32_t pair = row << Found::column_bits | column;
                if (near >> 2 * which & 1) found.put(at++, value, pair);
                if (near >> 2 * which & 2) found.put(at++, value, pair | Found::swapped);
            });
            __syncthreads();
            for (uint32_t at = threadIdx.x; at < shared.found_count; at += threads) {
                const uint32_t pair = found.pairs[at];
                const uint32_t a = numbers.rows[a0 + (pair >> Found::column_bits) % tile_rows];
                const uint32_t b = numbers.rows[b0 + pair % tile_columns];
                const bool swapped = pair & Found::swapped;
                propose(m.proposals, swapped ? b : a, found.distances[at], swapped ? a : b);
            }
        }
    compared = __reduce_add_sync(whole_warp, compared);
    if (lane_id() == 0 && compared > 0) atomicAdd(m.compared, compared);
}

struct LeafWork {
    Matching matching;
    const uint32_t* order;
    uint32_t level;
    uint32_t first;
};

template <class Values>
__global__ void __launch_bounds__(threads, 8) match_leaf(LeafWork w) {
    auto& shared = *shared_memory<TileShared>();
    const GraphView& view = w.matching.view;
    const uint32_t leaf = w.first + blockIdx.x;
    const uint32_t begin = group_begin(leaf, w.level, view.count);
    const uint32_t count = group_begin(leaf + 1, w.level, view.count) - begin;
    const Numbers numbers{w.order + begin, count, count};
    match<Values>(w.matching, numbers, view.centred() ? view.row(w.order[begin]) : nullptr, shared);
}

// The whole block copies distinct numbers of `raw` to `to`, in their order and at most `most`, and
// leaves out those among the `before` numbers in front of `to`. Returns how many it copied.
__device__ uint32_t collect(const uint32_t* raw, uint32_t count, uint32_t* to, uint32_t before,
                            uint32_t most, uint32_t* warp_counts) {
    uint32_t total = 0;
    for (uint32_t base = 0; base < count; base += threads) {
        const uint32_t i = base + threadIdx.x;
        const uint32_t number = i < count ? raw[i] : no_row;
        bool keep = number != no_row;
        if (keep) {
            for (uint32_t j = 0; j < i; ++j) keep &= raw[j] != number;
            for (uint32_t j = 1; j <= before; ++j) keep &= *(to - j) != number;
        }
        const unsigned lanes = __ballot_sync(whole_warp, keep);
        if (lane_id() == 0) warp_counts[threadIdx.x / 32] = __popc(lanes);
        __syncthreads();
        uint32_t at = total + __popc(lanes & ((1u << lane_id()) - 1));
        for (uint32_t w = 0; w < warps; ++w) {
            if (w < threadIdx.x / 32) at += warp_counts[w];
            total += warp_counts[w];
        }
        if (keep && at < most) to[at] = number;
        __syncthreads();
    }
    return min(total, most);
}

struct SampleWork {
    Matching matching;
    SampleView samples;
    const uint32_t* order;
    uint32_t first;
};

// Raw numbers of one kind (new or old), and the numbers kept of both.
size_t sample_numbers(const SampleView& samples) {
    return samples.samples + samples.places + 4 * size_t{samples.samples};
}

template <class Values>
__global__ void __launch_bounds__(threads, 8) match_sample(SampleWork w) {
    auto& shared = *shared_memory<TileShared>();
    const GraphView& view = w.matching.view;
    const SampleView& s = w.samples;
    const uint32_t row = w.order[w.first + blockIdx.x];
    auto* raw = reinterpret_cast<uint32_t*>(&shared + 1);
    uint32_t* kept = raw + s.samples + s.places;
    const auto fill_raw = [&](const uint32_t* forwards, const uint32_t* backwards) {
        for (uint32_t i = threadIdx.x; i < s.samples; i += threads)
            raw[i] = forwards[size_t{row} * s.samples + i];
        for (uint32_t i = threadIdx.x; i < s.places; i += threads) {
            const uint32_t scattered = backwards[size_t{row} * s.places + i];
            raw[s.samples + i] = scattered == no_index ? no_row : gather(scattered) ^ s.salt;
        }
        __syncthreads();
    };
    fill_raw(s.fresh_forwards, s.fresh_backwards);
    const uint32_t raw_count = s.samples + s.places, most = 2 * s.samples;
    const uint32_t fresh = collect(raw, raw_count, kept, 0, most, shared.counts);
    if (fresh == 0) return;
    fill_raw(s.old_forwards, s.old_backwards);
    const uint32_t old = collect(raw, raw_count, kept + fresh, fresh, most, shared.counts);
    match<Values>(w.matching, {kept, fresh, fresh + old}, view.centred() ? view.row(row) : nullptr,
                  shared);
}

template <class Kernel>
Kernel kernel_for(Metric metric, Kernel of_products, Kernel of_differences) {
    switch (metric) {
        case Metric::l2:
        case Metric::inner_product:
        case Metric::cosine:
            return of_products;
        case Metric::l1:
            return of_differences;
    }
    throw std::logic_error("unknown metric");
}

}  // namespace

void match_leaves(const Matching& matching, const uint32_t* order, uint32_t level, uint32_t first,
                  uint32_t count, cudaStream_t stream) {
    const auto kernel =
        kernel_for(matching.view.metric, &match_leaf<ProductValues>, &match_leaf<DifferenceValues>);
    launch("match_leaf", kernel, {count, threads, sizeof(TileShared), stream},
           LeafWork{matching, order, level, first});
}

void match_samples(const Matching& matching, const SampleView& samples, const uint32_t* order,
                   uint32_t first, uint32_t count, cudaStream_t stream) {
    const auto kernel = kernel_for(matching.view.metric, &match_sample<ProductValues>,
                                   &match_sample<DifferenceValues>);
    launch(
        "match_sample", kernel,
        {count, threads, sizeof(TileShared) + sample_numbers(samples) * sizeof(uint32_t), stream},
        SampleWork{matching, samples, order, first});
}

}  // namespace pgwarp::gpu
