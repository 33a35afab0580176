// A block of four warps multiplies 128 rows with several tiles of 128 others, one tile after the
// other, 16 dimensions per step. Its rows stay in shared memory; the others are prefetched some
// steps ahead by asynchronous copies. A warp accumulates 64 rows by 64 others. In each step it
// loads high and low halves once, and multiplies three times: high by high, high by low, low by
// high.

#include "kernels/cuda/products/tile_products.h"

#include "kernels/cuda/base/launch.cuh"
#include "kernels/cuda/products/split.cuh"
#include "kernels/cuda/select/warp_select.cuh"

#include <algorithm>

namespace pgwarp::gpu {

namespace {

constexpr unsigned threads = 128;
constexpr uint32_t tile = 128;  // rows, and others, of a tile
constexpr uint32_t step = 16;   // dimensions per step
constexpr uint32_t stages = 4;  // steps of others in shared memory
constexpr uint32_t max_dims = 128;
// Stride of rows in shared memory, in halves. Eight halves of padding avoid bank conflicts between
// the eight rows that ldmatrix loads together.
constexpr uint32_t other_halves = 2 * step + 8;
PGWARP_HOST_DEVICE constexpr uint32_t row_halves(uint32_t dims) {
    return 2 * dims + 8;
}

size_t shared_bytes(uint32_t dims) {
    return (size_t{tile} * row_halves(dims) + size_t{stages} * tile * other_halves) *
           sizeof(__half);
}

struct TileArguments {
    PairView rows, others;
    uint32_t dims;         // pair_dims()
    uint32_t other_tiles;  // in all
    uint32_t block_tiles;  // per block
    uint64_t* keys;        // for the nearest
    float factor;          // for products
    float* products;
    size_t stride;
    uint32_t columns;  // even
    TileGroups groups;
};

__device__ __forceinline__ void copy_16_bytes(__half* to, const __half* from) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(shared_address(to)), "l"(from)
                 : "memory");
}
__device__ __forceinline__ void end_of_copies() {
    asm volatile("cp.async.commit_group;" ::: "memory");
}
// Waits until at most `groups` groups of copies are in flight.
template <int groups>
__device__ __forceinline__ void wait_for_copies() {
    asm volatile("cp.async.wait_group %0;" ::"n"(groups) : "memory");
}

// Loads four matrices of 8 x 8 halves; each lane passes the address of one of their 32 rows.
__device__ __forceinline__ void load_matrices(uint32_t (&four)[4], const __half* row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(four[0]), "=r"(four[1]), "=r"(four[2]), "=r"(four[3])
                 : "r"(shared_address(row))
                 : "memory");
}

// 16 rows by 8 others over 16 dimensions.
__device__ __forceinline__ void multiply_add(float (&sums)[4], const uint32_t (&rows)[4],
                                             uint32_t other0, uint32_t other1) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
        "{%8, %9}, {%0, %1, %2, %3};"
        : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
        : "r"(rows[0]), "r"(rows[1]), "r"(rows[2]), "r"(rows[3]), "r"(other0), "r"(other1));
}

// Copies all of a block's rows to shared memory, 16 bytes at a time.
__device__ void fetch_rows(const TileArguments& a, size_t first_row, __half* to) {
    const uint32_t pieces = a.dims / 4;  // of a row
    const __half* from = a.rows.halves + first_row * 2 * a.dims;
    for (uint32_t i = threadIdx.x; i < tile * pieces; i += threads) {
        const uint32_t row = i / pieces, piece = i % pieces;
        copy_16_bytes(to + row * row_halves(a.dims) + piece * 8, from + size_t{i} * 8);
    }
}

// Iterates over the steps of all tiles of a block.
struct Steps {
    uint32_t tile, end_tile, dims;
    const uint32_t* numbers = nullptr;  // of the tiles; null: they are numbered as they come
    uint32_t d = 0;

    __device__ uint32_t number() const { return numbers ? __ldg(numbers + tile) : tile; }

    __device__ bool ended() const { return tile == end_tile; }
    __device__ bool is_last_of_tile() const { return d + step == dims; }
    __device__ void next() {
        d += step;
        if (d == dims) d = 0, ++tile;
    }
};

// Copies one step of a tile of others; each thread copies four times 16 bytes.
__device__ void fetch(const TileArguments& a, const Steps& at, __half* stage) {
    const uint32_t first = at.number() * tile;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        const uint32_t piece = threadIdx.x + i * threads, other = piece / 4, part = piece % 4;
        const size_t row = size_t{first} + other;
        copy_16_bytes(stage + other * other_halves + part * 8,
                      a.others.halves + row * 2 * a.dims + part / 2 * a.dims + at.d + part % 2 * 8);
    }
}

// One step of a warp's 64 rows by 64 others.
__device__ __forceinline__ void multiply_step(const __half* rows, uint32_t dims,
                                              const __half* others, float (&sums)[4][8][4]) {
    uint32_t high[4][4], low[4][4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        const __half* row =
            rows + (i * 16 + lane_id() % 16) * row_halves(dims) + lane_id() / 16 * 8;
        load_matrices(high[i], row);
        load_matrices(low[i], row + dims);
    }
#pragma unroll
    for (int j = 0; j < 4; ++j) {
        uint32_t other_high[4], other_low[4];
        const uint32_t other = j * 16 + lane_id() / 16 * 8 + lane_id() % 8;
        const __half* from = others + other * other_halves + lane_id() / 8 % 2 * 8;
        load_matrices(other_high, from);
        load_matrices(other_low, from + step);
        const auto multiply_all = [&](const uint32_t(&of_rows)[4][4],
                                      const uint32_t(&of_others)[4]) {
#pragma unroll
            for (int half = 0; half < 2; ++half)
#pragma unroll
                for (int i = 0; i < 4; ++i)
                    multiply_add(sums[i][2 * j + half], of_rows[i], of_others[2 * half],
                                 of_others[2 * half + 1]);
        };
        multiply_all(high, other_high);
        multiply_all(high, other_low);
        multiply_all(low, other_high);
    }
}

// The nearest others of a lane's eight rows: r stands for the warp's row
// r / 2 * 16 + r % 2 * 8 + lane / 4.
struct NearestSoFar {
    float value[8];
    uint32_t index[8];

    __device__ NearestSoFar() {
#pragma unroll
        for (int r = 0; r < 8; ++r) value[r] = __uint_as_float(infinity_bits), index[r] = 0;
    }
    __device__ __forceinline__ void see(int r, float distance, uint32_t other) {
        if (distance < value[r]) value[r] = distance, index[r] = other;
    }
    // Reduces over the four lanes that share these rows, then over warps and blocks by atomics.
    __device__ void merge_into(size_t first_row, size_t count, uint64_t* keys) const {
#pragma unroll
        for (int r = 0; r < 8; ++r) {
            uint64_t key = make_key(value[r], index[r]);
#pragma unroll
            for (int distance = 1; distance < 4; distance *= 2) {
                const uint64_t other = __shfl_xor_sync(whole_warp, key, distance);
                key = other < key ? other : key;
            }
            const size_t row = first_row + r / 2 * 16 + r % 2 * 8 + lane_id() / 4;
            if (lane_id() % 4 == 0 && row < count)
                atomicMin(reinterpret_cast<unsigned long long*>(keys) + row,
                          static_cast<unsigned long long>(key));
        }
    }
};

template <bool nearest>
__global__ void __launch_bounds__(threads, 2) tile_products(TileArguments a) {
    __half* rows = shared_memory<__half>();                     // (tile)(row_halves)
    __half* others = rows + size_t{tile} * row_halves(a.dims);  // (stages)(tile)(other_halves)
    const size_t first_row = size_t{blockIdx.x} * tile;
    const uint32_t first_tile = blockIdx.y * a.block_tiles;
    Steps at{first_tile, min(first_tile + a.block_tiles, a.other_tiles), a.dims};
    if (a.groups.of_rows) {
        const uint32_t group = a.groups.of_rows[blockIdx.x];
        if (group == no_index) return;  // the whole block
        at.tile = a.groups.begin[group];
        at.end_tile = a.groups.begin[group + 1];
        at.numbers = a.groups.tiles;
    }
    Steps ahead = at;
    uint32_t fetched = 0, stage = 0;
    const auto fetch_next = [&] {
        if (!ahead.ended()) {
            fetch(a, ahead, others + size_t{fetched} * tile * other_halves);
            ahead.next();
        }
        end_of_copies();
        fetched = (fetched + 1) % stages;
    };
    fetch_rows(a, first_row, rows);  // in the first group of copies
    for (uint32_t i = 0; i + 1 < stages; ++i) fetch_next();

    const uint32_t warp = threadIdx.x / 32, own_row = warp / 2 * 64, own_other = warp % 2 * 64;
    const auto lane_row = [&](int r) {
        return first_row + own_row + r / 2 * 16 + r % 2 * 8 + lane_id() / 4;
    };
    float factors[8];
#pragma unroll
    for (int r = 0; r < 8; ++r) {
        const size_t row = lane_row(r);
        factors[r] = a.factor / (row < a.rows.count ? __ldg(a.rows.scales + row) : 1.0f);
        if (nearest) factors[r] /= __ldg(a.others.scales);
    }
    float sums[4][8][4] = {};
    NearestSoFar best;
    for (; !at.ended(); at.next()) {
        wait_for_copies<stages - 2>();
        // All threads' copies have arrived, and no warp still reads the stage that is filled next.
        __syncthreads();
        fetch_next();
        multiply_step(rows + own_row * row_halves(a.dims) + at.d, a.dims,
                      others + (size_t{stage} * tile + own_other) * other_halves, sums);
        stage = (stage + 1) % stages;
        if (!at.is_last_of_tile()) continue;
#pragma unroll
        for (int j = 0; j < 8; ++j) {
            const uint32_t other = at.number() * tile + own_other + j * 8 + lane_id() % 4 * 2;
            // The others' norms, or the inverses of their scales.
            float2 two = __ldg(reinterpret_cast<const float2*>(
                (nearest ? a.others.norms : a.others.scales) + other));
            if (!nearest) two = {1 / two.x, 1 / two.y};
#pragma unroll
            for (int r = 0; r < 8; ++r) {
                float* sum = &sums[r / 2][j][r % 2 * 2];
                if (nearest) {
                    best.see(r, fmaf(factors[r], sum[0], two.x), other);
                    best.see(r, fmaf(factors[r], sum[1], two.y), other + 1);
                } else if (lane_row(r) < a.rows.count && other < a.columns) {
                    *reinterpret_cast<float2*>(a.products + lane_row(r) * a.stride + other) = {
                        factors[r] * sum[0] * two.x, factors[r] * sum[1] * two.y};
                }
                sum[0] = sum[1] = 0;
            }
        }
    }
    wait_for_copies<0>();
    if (nearest) best.merge_into(first_row + own_row, a.rows.count, a.keys);
}

__global__ void take_indices(const uint64_t* keys, size_t count, uint32_t* indices) {
    const size_t i = size_t{blockIdx.x} * blockDim.x + threadIdx.x;
    if (i < count) indices[i] = key_index(keys[i]);
}

// One warp per row; rows from matrix.count on are padding. `numbers`: those of the rows in the
// matrix; null: all rows as they come. `largest` is that of all rows; null: each row has its own
// scale.
__global__ void __launch_bounds__(256)
    split_into_pairs(FloatMatrix matrix, const uint32_t* numbers, size_t rows, uint32_t dims,
                     const uint32_t* largest, __half* halves, float* scales, float* norms) {
    const size_t row = (size_t{blockIdx.x} * 256 + threadIdx.x) / 32;
    if (row >= rows) return;
    const size_t from = numbers ? numbers[row] : row;
    const bool is_there = from < matrix.count;
    float x[max_dims / 32];
    float norm = 0;
    uint32_t own_largest = 0;
#pragma unroll
    for (uint32_t i = 0; i < max_dims / 32; ++i) {
        const uint32_t d = i * 32 + lane_id();
        x[i] = is_there && d < matrix.dims ? element(matrix, from, d) : 0.0f;
        norm = fmaf(x[i], x[i], norm);
        own_largest = max(own_largest, __float_as_uint(fabsf(x[i])));
    }
    own_largest = __reduce_max_sync(whole_warp, own_largest);
#pragma unroll
    for (int distance = 16; distance > 0; distance /= 2)
        norm += __shfl_xor_sync(whole_warp, norm, distance);
    const float scale = scale_for(largest ? *largest : own_largest);
    __half* to = halves + row * 2 * dims;
#pragma unroll
    for (uint32_t i = 0; i < max_dims / 32; ++i) {
        const uint32_t d = i * 32 + lane_id();
        if (d >= dims) break;
        const auto [high, low] = split_number(x[i] * scale);
        to[d] = high;
        to[dims + d] = low;
    }
    if (lane_id() != 0) return;
    scales[row] = scale;
    norms[row] = is_there ? norm : __uint_as_float(infinity_bits);
}

// Launches about 16 blocks per multiprocessor, so that none idles at the end.
void launch_tiles(const Context& context, TileArguments a, bool nearest, cudaStream_t stream) {
    if (a.rows.count == 0 || a.others.count == 0) return;
    constexpr uint32_t min_tiles = 2;
    a.dims = pair_dims(a.rows.dims);
    a.other_tiles = static_cast<uint32_t>(pair_rows(a.others.count) / tile);
    const auto row_tiles = static_cast<uint32_t>(divide_up(a.rows.count, size_t{tile}));
    const uint32_t wanted = divide_up(16 * context.processors, row_tiles);
    a.block_tiles = std::clamp(divide_up(a.other_tiles, wanted), std::min(min_tiles, a.other_tiles),
                               a.other_tiles);
    if (a.groups.of_rows) a.block_tiles = a.other_tiles;  // a block takes all of its group
    launch("tile_products", nearest ? tile_products<true> : tile_products<false>,
           {dim3(row_tiles, divide_up(a.other_tiles, a.block_tiles)), threads, shared_bytes(a.dims),
            stream},
           a);
}

}  // namespace

bool fits_tiles(const Context& context, uint32_t dims) {
    return dims <= max_dims && shared_bytes(pair_dims(dims)) <= context.block_shared_bytes;
}

void PairMatrix::grow(DeviceMemory& memory, size_t rows, uint32_t dims) {
    halves_.grow(memory, pair_rows(rows) * 2 * pair_dims(dims));
    scales_.grow(memory, pair_rows(rows));
    norms_.grow(memory, pair_rows(rows));
    largest_.grow(memory, 1);
}

void PairMatrix::split(const FloatMatrix& matrix, Scales scales, cudaStream_t stream) {
    split_some(matrix, nullptr, matrix.count, scales, stream);
}

void PairMatrix::split_some(const FloatMatrix& matrix, const uint32_t* numbers, size_t count,
                            Scales scales, cudaStream_t stream) {
    count_ = count;
    dims_ = matrix.dims;
    const bool common = scales == Scales::common;
    if (common) find_largest(matrix, largest_.data(), stream);
    const size_t rows = pair_rows(count);
    launch("split_into_pairs", split_into_pairs,
           {static_cast<unsigned>(divide_up(rows * 32, size_t{256})), 256, 0, stream}, matrix,
           numbers, rows, pair_dims(matrix.dims), common ? largest_.data() : nullptr,
           halves_.data(), scales_.data(), norms_.data());
}

PairView PairMatrix::view(size_t first, size_t count) const {
    return {halves_ + first * 2 * pair_dims(dims_), scales_ + first, norms_ + first, count, dims_};
}

void nearest_by_tiles(const Context& context, const PairView& rows, const PairView& others,
                      uint64_t* keys, uint32_t* nearest, cudaStream_t stream) {
    nearest_of_groups(context, rows, others, {}, keys, stream);
    launch("take_indices", take_indices,
           {static_cast<unsigned>(divide_up(rows.count, size_t{256})), 256, 0, stream},
           static_cast<const uint64_t*>(keys), rows.count, nearest);
}

void nearest_of_groups(const Context& context, const PairView& rows, const PairView& others,
                       const TileGroups& groups, uint64_t* keys, cudaStream_t stream) {
    check(cudaMemsetAsync(keys, 0xff, rows.count * sizeof(uint64_t), stream), "cudaMemsetAsync");
    TileArguments arguments = {};
    arguments.rows = rows;
    arguments.others = others;
    arguments.keys = keys;
    arguments.factor = -2.0f;
    arguments.groups = groups;
    launch_tiles(context, arguments, true, stream);
}

void multiply_by_tiles(const Context& context, const PairView& rows, const PairView& others,
                       float factor, float* products, size_t stride, cudaStream_t stream) {
    TileArguments arguments = {};
    arguments.rows = rows;
    arguments.others = others;
    arguments.factor = factor;
    arguments.products = products;
    arguments.stride = stride;
    arguments.columns = static_cast<uint32_t>(std::min(stride, pair_rows(others.count)) / 2 * 2);
    launch_tiles(context, arguments, false, stream);
}

}  // namespace pgwarp::gpu
