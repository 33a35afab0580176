// A warp searches the code of one row from start to end. Lane l holds code l in a register, and the
// scores of words 8 l to 8 l + 7 of the current codebook, two packed into 32 bits: scores are
// unsigned, and no sum exceeds 16 bits, so that one addition adds both. The row's unary terms are
// in shared memory. The tables of products, read 512 bytes at a time, stay in the L2 cache.

#include "kernels/cuda/train/lsq_encoder.h"

#include "kernels/cuda/base/launch.cuh"
#include "kernels/cuda/base/stream.h"
#include "kernels/cuda/select/warp_select.cuh"
#include "kernels/common/lsq_chance.h"

#include <algorithm>
#include <stdexcept>
#include <vector>

namespace pgwarp::gpu {

namespace {

constexpr unsigned warps = 4;
constexpr unsigned threads = 32 * warps;
constexpr size_t max_chunk_rows = 65536;
constexpr uint32_t lane_words = codewords / 32;
static_assert(lane_words * sizeof(uint16_t) == sizeof(uint4));

struct SearchArguments {
    LsqSearch search;
    LsqShape shape;
    LsqScale scale;
    const float* rows;
    const float* words;
    const float* norms;     // (books)(256)
    const float* products;  // (count)(stride): -2 <row, word>
    size_t stride;
    const uint4* pairs;  // (books)(books)(256)(32)
    size_t count;
    bool improve;
    uint8_t* codes;
    float* errors;
};

__device__ __forceinline__ uint32_t packed(uint16_t low, uint16_t high) {
    return low | uint32_t{high} << 16;
}

__device__ __forceinline__ float warp_sum(float value) {
#pragma unroll
    for (int distance = 16; distance > 0; distance /= 2)
        value += __shfl_xor_sync(whole_warp, value, distance);
    return value;
}

// Writes the row's terms for all words, in steps of the scale above the smallest of each codebook.
__device__ void write_unary(const SearchArguments& a, size_t row, uint4* unary) {
    const float* products = a.products + row * a.stride;
    for (uint32_t k = 0; k < a.shape.books; ++k) {
        const uint32_t first = k * codewords + lane_id() * lane_words;
        float value[lane_words];
        float least = __int_as_float(infinity_bits);
#pragma unroll
        for (uint32_t i = 0; i < lane_words; i += 4) {
            const float4 product = __ldcs(reinterpret_cast<const float4*>(products + first + i));
            const float4 norm = __ldg(reinterpret_cast<const float4*>(a.norms + first + i));
            value[i] = product.x + norm.x;
            value[i + 1] = product.y + norm.y;
            value[i + 2] = product.z + norm.z;
            value[i + 3] = product.w + norm.w;
        }
#pragma unroll
        for (uint32_t i = 0; i < lane_words; ++i) least = fminf(least, value[i]);
#pragma unroll
        for (int distance = 16; distance > 0; distance /= 2)
            least = fminf(least, __shfl_xor_sync(whole_warp, least, distance));
        uint16_t steps[lane_words];
#pragma unroll
        for (uint32_t i = 0; i < lane_words; ++i)
            steps[i] = LsqScale::steps(value[i] - least, a.scale.inverse, a.scale.most);
        unary[k * 32 + lane_id()] = {packed(steps[0], steps[1]), packed(steps[2], steps[3]),
                                     packed(steps[4], steps[5]), packed(steps[6], steps[7])};
    }
    __syncwarp();
}

__device__ __forceinline__ void add(uint4& sum, const uint4& term) {
    sum.x += term.x;
    sum.y += term.y;
    sum.z += term.z;
    sum.w += term.w;
}

// The word with the smallest score; of ties, the lowest number.
__device__ __forceinline__ uint32_t lowest(const uint4& sum) {
    const uint32_t first = lane_id() * lane_words;
    const auto key = [first](uint32_t two, uint32_t i) {
        const uint32_t low = (two & 0xffff) << 8 | (first + i);
        const uint32_t high = two >> 16 << 8 | (first + i + 1);
        return min(low, high);
    };
    const uint32_t least =
        min(min(key(sum.x, 0), key(sum.y, 2)), min(key(sum.z, 4), key(sum.w, 6)));
    return __reduce_min_sync(whole_warp, least) & 0xff;
}

// This lane's part of the row for codebook l's code, in the table of codebooks k and l.
__device__ __forceinline__ uint4 pair_row(const SearchArguments& a, uint32_t books, uint32_t k,
                                          uint32_t l, uint32_t code) {
    const uint32_t other = __shfl_sync(whole_warp, code, l);
    return __ldg(a.pairs + ((k * books + l) * codewords + other) * 32 + lane_id());
}

// The best code of codebook k, given the codes of the others. `code`: lane l has code l.
template <int fixed_books>
__device__ __forceinline__ uint32_t best_code(const SearchArguments& a, const uint4* unary,
                                              uint32_t k, uint32_t code) {
    uint4 sum = unary[k * 32 + lane_id()];
    if constexpr (fixed_books > 0) {
        uint4 terms[fixed_books];
#pragma unroll
        for (int step = 1; step < fixed_books; ++step) {
            const uint32_t l = k + step < fixed_books ? k + step : k + step - fixed_books;
            terms[step] = pair_row(a, fixed_books, k, l, code);
        }
#pragma unroll
        for (int step = 1; step < fixed_books; ++step) add(sum, terms[step]);
    } else {
        const uint32_t books = a.shape.books;
#pragma unroll 4
        for (uint32_t l = 0; l < books; ++l)
            if (l != k) add(sum, pair_row(a, books, k, l, code));
    }
    return lowest(sum);
}

template <int fixed_books>
__device__ uint32_t descend(const SearchArguments& a, const uint4* unary, uint32_t code) {
    const uint32_t books = fixed_books > 0 ? fixed_books : a.shape.books;
    uint32_t unchanged = 0;
    for (uint32_t sweep = 0; sweep < a.search.sweeps; ++sweep)
        for (uint32_t k = 0; k < books; ++k) {
            const uint32_t best = best_code<fixed_books>(a, unary, k, code);
            const bool same = best == __shfl_sync(whole_warp, code, k);
            unchanged = same ? unchanged + 1 : 1;
            if (lane_id() == k) code = best;
            // No code can change any more: the search has converged.
            if (unchanged >= books) return code;
        }
    return code;
}

__device__ float error_of(const SearchArguments& a, const float* row, uint32_t code) {
    float error = 0;
    // All lanes run all rounds: the shuffle below needs the whole warp.
    const uint32_t rounds = (a.shape.dims + 31) / 32;
    for (uint32_t i = 0; i < rounds; ++i) {
        const uint32_t d = i * 32 + lane_id();
        const bool inside = d < a.shape.dims;
        float sum = 0;
        for (uint32_t k = 0; k < a.shape.books; ++k) {
            const uint32_t word = k * codewords + __shfl_sync(whole_warp, code, k);
            if (inside) sum += __ldg(a.words + size_t{word} * a.shape.dims + d);
        }
        const float off = inside ? row[d] - sum : 0;
        error = fmaf(off, off, error);
    }
    return warp_sum(error);
}

__device__ uint64_t row_seed(const float* row, uint32_t dims) {
    unsigned long long seed = 0;
    for (uint32_t d = lane_id(); d < dims; d += 32) seed += seed_part(d, __float_as_uint(row[d]));
#pragma unroll
    for (int distance = 16; distance > 0; distance /= 2)
        seed += __shfl_xor_sync(whole_warp, seed, distance);
    return seed;
}

template <int fixed_books>
__global__ void __launch_bounds__(threads) search_codes(SearchArguments a) {
    const size_t row_number = size_t{blockIdx.x} * warps + threadIdx.x / 32;
    if (row_number >= a.count) return;
    const uint32_t books = fixed_books > 0 ? fixed_books : a.shape.books;
    uint4* unary = shared_memory<uint4>() + threadIdx.x / 32 * (books * 32);
    const float* row = a.rows + row_number * a.shape.dims;
    uint8_t* codes = a.codes + row_number * books;
    write_unary(a, row_number, unary);

    uint32_t code = 0, best = 0;
    if (a.improve) {
        if (lane_id() < books) code = best = codes[lane_id()];
    } else {
        // Greedy start: each codebook in turn encodes what the previous ones leave.
        for (uint32_t k = 0; k < books; ++k) {
            uint4 sum = unary[k * 32 + lane_id()];
            for (uint32_t l = 0; l < k; ++l) add(sum, pair_row(a, books, k, l, code));
            const uint32_t found = lowest(sum);
            if (lane_id() == k) code = found;
        }
    }
    LsqChance chance(row_seed(row, a.shape.dims));
    float best_error = __int_as_float(infinity_bits);
    for (uint32_t round = 0;; ++round) {
        code = descend<fixed_books>(a, unary, code);
        const float error = error_of(a, row, code);
        if (error < best_error) best_error = error, best = code;
        if (round == a.search.rounds) break;
        code = best;
        chance.perturb(books, a.search.perturbed, [&](uint32_t k, uint32_t chosen) {
            if (lane_id() == k) code = chosen;
        });
    }
    if (lane_id() < books) codes[lane_id()] = static_cast<uint8_t>(best);
    if (a.errors && lane_id() == 0) a.errors[row_number] = best_error;
}

// --- tables

// products, (words)(words): row (l, b), column (k, c). One block per table.
__global__ void __launch_bounds__(codewords)
    pair_ranges(const float* products, uint32_t books, float* lows, float* highs) {
    const uint32_t k = blockIdx.x, l = blockIdx.y;
    const size_t stride = size_t{books} * codewords;
    float low = __int_as_float(infinity_bits), high = -low;
    for (uint32_t b = 0; b < codewords; ++b) {
        const float value = products[(l * codewords + b) * stride + k * codewords + threadIdx.x];
        low = fminf(low, value);
        high = fmaxf(high, value);
    }
#pragma unroll
    for (int distance = 16; distance > 0; distance /= 2) {
        low = fminf(low, __shfl_xor_sync(whole_warp, low, distance));
        high = fmaxf(high, __shfl_xor_sync(whole_warp, high, distance));
    }
    __shared__ float low_of[codewords / 32], high_of[codewords / 32];
    if (lane_id() == 0) low_of[threadIdx.x / 32] = low, high_of[threadIdx.x / 32] = high;
    __syncthreads();
    if (threadIdx.x != 0) return;
    for (uint32_t i = 1; i < codewords / 32; ++i) {
        low = fminf(low, low_of[i]);
        high = fmaxf(high, high_of[i]);
    }
    lows[k * books + l] = low;
    highs[k * books + l] = high;
}

__global__ void __launch_bounds__(codewords)
    quantize_pairs(const float* products, uint32_t books, const float* lows, LsqScale scale,
                   uint16_t* pairs) {
    const uint32_t k = blockIdx.x, l = blockIdx.y;
    const size_t stride = size_t{books} * codewords;
    const float low = lows[k * books + l];
    uint16_t* table = pairs + size_t{k * books + l} * codewords * codewords;
    for (uint32_t b = 0; b < codewords; ++b) {
        const float value = products[(l * codewords + b) * stride + k * codewords + threadIdx.x];
        table[b * codewords + threadIdx.x] =
            k == l ? 0 : LsqScale::steps(value - low, scale.inverse, scale.most);
    }
}

__global__ void __launch_bounds__(threads) offsets_of_sums(SumOffsets a) {
    const size_t row = size_t{blockIdx.x} * warps + threadIdx.x / 32;
    if (row >= a.count) return;
    double sum = 0;
    if (has_norms(a.metric)) {
        const float* centroid = a.centroids + size_t{a.lists[row]} * a.shape.dims;
        for (uint32_t d = lane_id(); d < a.shape.dims; d += 32) {
            float r = 0;
            for (uint32_t k = 0; k < a.shape.books; ++k) {
                const uint32_t word = k * codewords + a.codes[row * a.shape.books + k];
                r += __ldg(a.words + size_t{word} * a.shape.dims + d);
            }
            sum += double{r} * (double{r} + 2.0 * centroid[d]);
        }
    }
#pragma unroll
    for (int distance = 16; distance > 0; distance /= 2)
        sum += __shfl_xor_sync(whole_warp, sum, distance);
    if (lane_id() == 0) a.offsets[row] = static_cast<float>(sum);
}

unsigned blocks_for(size_t rows) {
    return static_cast<unsigned>(divide_up(rows, size_t{warps}));
}

template <int fixed_books>
void launch_search(const SearchArguments& arguments, cudaStream_t stream) {
    launch("search_codes", search_codes<fixed_books>,
           {blocks_for(arguments.count), threads,
            size_t{warps} * arguments.shape.books * codewords * sizeof(uint16_t), stream},
           arguments);
}

}  // namespace

LsqEncoder::LsqEncoder(const Context& context, cudaStream_t stream, const Blas& blas,
                       const LsqShape& shape, const float* words)
    : context_(context),
      stream_(stream),
      blas_(blas),
      shape_(shape),
      words_([&] {
          Buffer<float> buffer(context.memory, shape.words() * shape.dims);
          copy_async(buffer.data(), words, buffer.size(), stream);
          return buffer;
      }()),
      matrix_(context, stream, words_.data(), static_cast<uint32_t>(shape.words()), shape.dims,
              Origin::zero, Wanted::products),
      pairs_(context.memory, size_t{shape.books} * shape.books * codewords * codewords) {
    // A lane holds one code.
    if (shape.books > 32)
        throw std::invalid_argument("a device searches codes of at most 32 codebooks");
    make_pairs();
}

void LsqEncoder::make_pairs() {
    const uint32_t books = shape_.books;
    ProductTile tile;
    Buffer<float> lows(context_.memory, size_t{books} * books);
    Buffer<float> highs(context_.memory, lows.size());
    std::vector<float> host_lows(lows.size()), host_highs(lows.size());
    const FinishStream finish(stream_);
    matrix_.multiply(blas_, stream_, {words_.data(), shape_.words(), shape_.dims, shape_.dims},
                     tile, 2.0f);
    launch("pair_ranges", pair_ranges, {dim3(books, books), codewords, 0, stream_},
           static_cast<const float*>(tile.products.data()), books, lows.data(), highs.data());
    copy_async(host_lows.data(), lows.data(), lows.size(), stream_);
    copy_async(host_highs.data(), highs.data(), highs.size(), stream_);
    check(cudaStreamSynchronize(stream_), "pair_ranges");
    scale_ = LsqScale::of(books, host_lows.data(), host_highs.data());
    launch("quantize_pairs", quantize_pairs, {dim3(books, books), codewords, 0, stream_},
           static_cast<const float*>(tile.products.data()), books,
           static_cast<const float*>(lows.data()), scale_, pairs_.data());
}

size_t LsqEncoder::chunk_rows() const {
    return std::min(max_chunk_rows, CentroidMatrix::tile_rows(static_cast<uint32_t>(shape_.words()),
                                                              shape_.dims, context_.scratch() / 4));
}

void LsqEncoder::encode(const LsqSearch& search, const float* rows, size_t count, bool improve,
                        uint8_t* codes, float* errors) {
    if (count == 0) return;
    matrix_.multiply(blas_, stream_, {rows, count, shape_.dims, shape_.dims}, tile_);
    const SearchArguments arguments{search,
                                    shape_,
                                    scale_,
                                    rows,
                                    words_.data(),
                                    matrix_.norms(),
                                    tile_.products.data(),
                                    matrix_.stride(),
                                    reinterpret_cast<const uint4*>(pairs_.data()),
                                    count,
                                    improve,
                                    codes,
                                    errors};
    switch (shape_.books) {
        case 7:
            return launch_search<7>(arguments, stream_);
        case 8:
            return launch_search<8>(arguments, stream_);
        case 15:
            return launch_search<15>(arguments, stream_);
        case 16:
            return launch_search<16>(arguments, stream_);
        default:
            return launch_search<0>(arguments, stream_);
    }
}

void sum_offsets(const SumOffsets& arguments, cudaStream_t stream) {
    launch("offsets_of_sums", offsets_of_sums, {blocks_for(arguments.count), threads, 0, stream},
           arguments);
}

}  // namespace pgwarp::gpu
