// The encoding kernel. A block of four or eight warps encodes 128 rows. It loads their residuals
// into shared memory, dimension by dimension, as many whole pieces at a time as fit. Each warp then
// encodes pieces of its own for all 128 rows: a lane keeps the piece of four rows in registers.
// A lane ranks eight codewords at a time against its four rows, so that each loaded value serves 32
// sums. A codeword's rank is |w|^2 / 2 - <r, w>, which orders as |r - w|^2 does. A lane compares
// only the smallest of eight ranks with the best so far, and finds which of the eight it was once,
// at the end.

#include "kernels/cuda/train/encode.h"

#include "kernels/cuda/base/launch.cuh"
#include "kernels/cuda/select/warp_select.cuh"

#include <cuda/std/limits>

namespace pgwarp::gpu {

namespace {

constexpr uint32_t tile_rows = 128;
constexpr int lane_rows = tile_rows / 32;
constexpr int tile_words = 8;
constexpr uint32_t longest_piece = 16;  // dimensions; encode_long_pieces() takes longer ones

struct EncodeArguments {
    DeviceModel model;
    DeviceEncoding encoding;
};

// Shared memory of a block, for pieces of up to `room` dimensions each and `dims` in all.
template <int room_, int warps_>
struct Slab {
    static constexpr int room = room_, warps = warps_;
    static constexpr uint32_t threads = warps * 32;
    static constexpr uint32_t dims = room <= 8 ? 32 : 64;
    double offsets[warps][tile_rows];
    float residuals[dims][tile_rows];     // row 4 l + i is the i-th of lane l
    float words[warps][room][codewords];  // each warp's piece of the codebook
    uint32_t lists[tile_rows];
    uint8_t codes[tile_rows][dims];
};

// A thread loads one row; with more threads than rows, several threads share a row. Loads take 16
// bytes of a row, and neighboring threads store to neighboring addresses.
template <class Slab>
__device__ void load_residuals(const EncodeArguments& a, Slab& slab, size_t first_row,
                               uint32_t first_dim, uint32_t dims) {
    constexpr uint32_t others = Slab::threads / tile_rows;
    const uint32_t all = a.model.shape.dims;
    const uint32_t own = threadIdx.x % tile_rows, part = threadIdx.x / tile_rows;
    const size_t row = first_row + own;
    const bool inside = row < a.encoding.count;
    const float* from = a.encoding.rows + row * all + first_dim;
    const float* centroid = a.encoding.lists && inside
                                ? a.model.centroids + size_t{slab.lists[own]} * all + first_dim
                                : nullptr;
    float* to = &slab.residuals[0][own];
    const auto load_one = [&](uint32_t d) {
        to[d * tile_rows] = inside ? from[d] - (centroid ? centroid[d] : 0.0f) : 0.0f;
    };
    if (all % 4 == 0 && first_dim % 4 == 0) {
        for (uint32_t d = 4 * part; d + 4 <= dims; d += 4 * others) {
            float4 x{0, 0, 0, 0};
            if (inside) x = *reinterpret_cast<const float4*>(from + d);
            if (centroid) {
                const float4 c = __ldg(reinterpret_cast<const float4*>(centroid + d));
                x.x -= c.x, x.y -= c.y, x.z -= c.z, x.w -= c.w;
            }
            to[(d + 0) * tile_rows] = x.x;
            to[(d + 1) * tile_rows] = x.y;
            to[(d + 2) * tile_rows] = x.z;
            to[(d + 3) * tile_rows] = x.w;
        }
        for (uint32_t d = dims / 4 * 4 + part; d < dims; d += others) load_one(d);
        return;
    }
    for (uint32_t d = part; d < dims; d += others) load_one(d);
}

__device__ __forceinline__ void load_eight(const float* from, float (&eight)[tile_words]) {
    const float4 a = *reinterpret_cast<const float4*>(from);
    const float4 b = *reinterpret_cast<const float4*>(from + 4);
    eight[0] = a.x, eight[1] = a.y, eight[2] = a.z, eight[3] = a.w;
    eight[4] = b.x, eight[5] = b.y, eight[6] = b.z, eight[7] = b.w;
}

// The nearest codeword of each of this lane's rows, whose pieces are x; of ties, the lowest number.
// `dims` is uniform in the warp, and at most `room`; words and x are zero beyond it.
template <int room>
__device__ __forceinline__ void nearest_words(const float* half_norms,
                                              const float (&words)[room][codewords], uint32_t dims,
                                              const float (&x)[room][lane_rows],
                                              uint32_t (&code)[lane_rows]) {
    float best[lane_rows];
    uint32_t best_word[lane_rows];
#pragma unroll
    for (int r = 0; r < lane_rows; ++r) {
        best[r] = cuda::std::numeric_limits<float>::infinity();
        best_word[r] = 0;
    }
#pragma unroll 1
    for (uint32_t word = 0; word < codewords; word += tile_words) {
        float rank[lane_rows][tile_words], eight[tile_words];
        load_eight(half_norms + word, eight);
#pragma unroll
        for (int r = 0; r < lane_rows; ++r)
#pragma unroll
            for (int i = 0; i < tile_words; ++i) rank[r][i] = eight[i];
#pragma unroll
        for (int d = 0; d < room; ++d) {
            // Skips padding in groups of four dimensions; padding within a group is computed.
            if (d % 4 == 0 && d >= static_cast<int>(dims)) break;
            load_eight(&words[d][word], eight);
#pragma unroll
            for (int r = 0; r < lane_rows; ++r)
#pragma unroll
                for (int i = 0; i < tile_words; ++i)
                    rank[r][i] = fmaf(-x[d][r], eight[i], rank[r][i]);
        }
#pragma unroll
        for (int r = 0; r < lane_rows; ++r) {
            float least = rank[r][0];
#pragma unroll
            for (int i = 1; i < tile_words; ++i) least = fminf(least, rank[r][i]);
            if (least < best[r]) best[r] = least, best_word[r] = word;
        }
    }
    // Computes the ranks of the best eight again, in the same order of dimensions, so that one of
    // them equals best[r] to the bit.
#pragma unroll
    for (int r = 0; r < lane_rows; ++r) {
        float rank[tile_words], eight[tile_words];
        load_eight(half_norms + best_word[r], rank);
#pragma unroll
        for (int d = 0; d < room; ++d) {
            if (d % 4 == 0 && d >= static_cast<int>(dims)) break;
            load_eight(&words[d][best_word[r]], eight);
#pragma unroll
            for (int i = 0; i < tile_words; ++i) rank[i] = fmaf(-x[d][r], eight[i], rank[i]);
        }
        code[r] = best_word[r];
#pragma unroll
        for (int i = tile_words - 1; i >= 0; --i)
            if (rank[i] == best[r]) code[r] = best_word[r] + i;
    }
}

// A warp encodes one piece: it writes codes into the slab, and adds the piece's part of the
// offsets.
template <class Slab>
__device__ void encode_piece(const EncodeArguments& a, Slab& slab, uint32_t piece,
                             uint32_t slab_piece, uint32_t slab_dim, double (&offset)[lane_rows]) {
    constexpr int room = Slab::room;
    const DeviceModel& model = a.model;
    const uint32_t begin = model.piece_begins[piece], dims = model.piece_begins[piece + 1] - begin;
    auto& words = slab.words[threadIdx.x / 32];
    const auto* from = reinterpret_cast<const float4*>(model.codebook + size_t{begin} * codewords);
    __syncwarp();
    for (uint32_t i = lane_id(); i < room * codewords / 4; i += 32)
        reinterpret_cast<float4*>(words)[i] =
            i < dims * codewords / 4 ? __ldg(from + i) : float4{0, 0, 0, 0};
    __syncwarp();
    float x[room][lane_rows];
#pragma unroll
    for (int d = 0; d < room; ++d) {
        float4 four{0, 0, 0, 0};
        if (d < static_cast<int>(dims))
            four = *reinterpret_cast<const float4*>(
                &slab.residuals[slab_dim + d][lane_id() * lane_rows]);
        x[d][0] = four.x, x[d][1] = four.y, x[d][2] = four.z, x[d][3] = four.w;
    }
    uint32_t code[lane_rows];
    nearest_words<room>(model.half_norms + size_t{piece} * codewords, words, dims, x, code);
#pragma unroll
    for (int r = 0; r < lane_rows; ++r) {
        const uint32_t row = lane_id() * lane_rows + r;
        slab.codes[row][slab_piece] = static_cast<uint8_t>(code[r]);
        if (!a.encoding.offsets || !has_norms(model.shape.metric)) continue;
        const float* centroid =
            model.centroids + size_t{slab.lists[row]} * model.shape.dims + begin;
        for (uint32_t d = 0; d < dims; ++d) {
            const double w = words[d][code[r]];
            offset[r] += w * (w + 2.0 * __ldg(centroid + d));
        }
    }
}

template <class Slab>
__device__ void write_codes(const EncodeArguments& a, const Slab& slab, size_t first_row,
                            uint32_t first_piece, uint32_t pieces) {
    constexpr uint32_t threads = Slab::threads;
    const size_t rows = min(size_t{tile_rows}, a.encoding.count - first_row);
    const uint32_t m = a.model.shape.m;
    if (m % 4 == 0 && first_piece % 4 == 0 && pieces % 4 == 0) {
        const uint32_t words = pieces / 4;
        for (uint32_t i = threadIdx.x; i < rows * words; i += threads) {
            const uint32_t row = i / words, word = i % words;
            const auto four = reinterpret_cast<const uint32_t*>(slab.codes[row])[word];
            uint8_t* to = a.encoding.codes + (first_row + row) * m + first_piece;
            reinterpret_cast<uint32_t*>(to)[word] = four;
        }
        return;
    }
    for (uint32_t i = threadIdx.x; i < rows * pieces; i += threads) {
        const uint32_t row = i / pieces, piece = i % pieces;
        a.encoding.codes[(first_row + row) * m + first_piece + piece] = slab.codes[row][piece];
    }
}

template <int room, int warps>
__global__ void __launch_bounds__(warps * 32, (room <= 4 ? 20 : 12) / warps)
    encode_rows(EncodeArguments a) {
    auto& slab = *shared_memory<Slab<room, warps>>();
    const DeviceModel& model = a.model;
    const size_t first_row = size_t{blockIdx.x} * tile_rows;
    const size_t own_row = first_row + threadIdx.x;
    const bool has_row = warps * 32 <= tile_rows || threadIdx.x < tile_rows;
    if (a.encoding.lists && has_row)
        slab.lists[threadIdx.x] = own_row < a.encoding.count ? a.encoding.lists[own_row] : 0;
    double offset[lane_rows] = {};

    for (uint32_t piece = 0; piece < model.shape.m;) {
        const uint32_t first_piece = piece, first_dim = model.piece_begins[piece];
        while (piece < model.shape.m && model.piece_begins[piece + 1] - first_dim <= slab.dims)
            ++piece;
        __syncthreads();
        load_residuals(a, slab, first_row, first_dim, model.piece_begins[piece] - first_dim);
        __syncthreads();
        for (uint32_t j = first_piece + threadIdx.x / 32; j < piece; j += warps)
            encode_piece(a, slab, j, j - first_piece, model.piece_begins[j] - first_dim, offset);
        __syncthreads();
        write_codes(a, slab, first_row, first_piece, piece - first_piece);
    }
    if (!a.encoding.offsets) return;
#pragma unroll
    for (int r = 0; r < lane_rows; ++r)
        slab.offsets[threadIdx.x / 32][lane_id() * lane_rows + r] = offset[r];
    __syncthreads();
    if (!has_row || own_row >= a.encoding.count) return;
    double sum = 0;
    for (uint32_t w = 0; w < warps; ++w) sum += slab.offsets[w][threadIdx.x];
    a.encoding.offsets[own_row] = static_cast<float>(sum);
}

__global__ void subtract(DeviceModel model, DeviceEncoding e, float* residuals) {
    const uint32_t dims = model.shape.dims;
    for (size_t i = size_t{blockIdx.x} * blockDim.x + threadIdx.x; i < e.count * dims;
         i += size_t{gridDim.x} * blockDim.x) {
        const size_t row = i / dims, d = i % dims;
        residuals[i] = e.rows[i] - model.centroids[size_t{e.lists[row]} * dims + d];
    }
}

// One warp per row.
__global__ void offsets_of(DeviceModel model, DeviceEncoding e) {
    const size_t row = (size_t{blockIdx.x} * blockDim.x + threadIdx.x) / 32;
    if (row >= e.count) return;
    double sum = 0;
    if (has_norms(model.shape.metric)) {
        const float* centroid = model.centroids + size_t{e.lists[row]} * model.shape.dims;
        for (uint32_t d = lane_id(); d < model.shape.dims; d += 32) {
            const uint8_t code = e.codes[row * model.shape.m + model.piece_of[d]];
            const double w = model.codebook[size_t{d} * codewords + code];
            sum += w * (w + 2.0 * centroid[d]);
        }
    }
#pragma unroll
    for (int distance = 16; distance > 0; distance /= 2)
        sum += __shfl_xor_sync(whole_warp, sum, distance);
    if (lane_id() == 0) e.offsets[row] = static_cast<float>(sum);
}

template <int room, int warps>
void launch_encode(const EncodeArguments& arguments, cudaStream_t stream) {
    using Shared = Slab<room, warps>;
    const size_t tiles = divide_up(arguments.encoding.count, size_t{tile_rows});
    launch("encode_rows", encode_rows<room, warps>,
           {static_cast<unsigned>(tiles), Shared::threads, sizeof(Shared), stream}, arguments);
}

}  // namespace

// With few blocks, a multiprocessor runs one or two at a time: blocks of eight warps then take half
// the time.
Encoder::Encoder(const Context& context, cudaStream_t stream, const Blas& blas, const Model& model,
                 size_t most_rows)
    : context_(context),
      stream_(stream),
      blas_(blas),
      model_(model),
      few_(most_rows < size_t{2} * tile_rows * context.processors),
      longest_piece_(sizeof(Slab<longest_piece, 4>) <= context.block_shared_bytes ? longest_piece
                                                                                  : 8) {
    refresh();
}

void Encoder::refresh() {
    if (model_.longest_piece() <= longest_piece_) return;
    const DeviceModel& view = model_.view();
    codewords_.grow(context_.memory, size_t{view.shape.dims} * codewords);
    transpose_codebook(view, codewords_.data(), stream_);
    pieces_.clear();
    for (uint32_t j = 0; j < view.shape.m; ++j) {
        const uint32_t begin = view.shape.piece_begin(j);
        pieces_.emplace_back(context_, stream_, codewords_ + size_t{begin} * codewords, codewords,
                             view.shape.piece_begin(j + 1) - begin, Origin::zero, Wanted::products);
    }
}

void Encoder::encode(const DeviceEncoding& e) {
    if (e.count == 0) return;
    if (model_.longest_piece() > longest_piece_) {
        encode_long_pieces(e);
        return;
    }
    const EncodeArguments arguments{model_.view(), e};
    auto* encode_all = &launch_encode<longest_piece, 4>;
    if (model_.longest_piece() <= 4)
        encode_all = few_ ? &launch_encode<4, 8> : &launch_encode<4, 4>;
    else if (model_.longest_piece() <= 8)
        encode_all = few_ ? &launch_encode<8, 8> : &launch_encode<8, 4>;
    encode_all(arguments, stream_);
}

// For long pieces, of which a row has few, each is a search for the nearest of 256 centroids.
void Encoder::encode_long_pieces(const DeviceEncoding& e) {
    const QuantizerShape& shape = model_.view().shape;
    const float* residuals = e.rows;
    if (e.lists) {
        residuals_.grow(context_.memory, e.count * shape.dims);
        launch("subtract", subtract, {4 * context_.processors, 512, 0, stream_}, model_.view(), e,
               residuals_.data());
        residuals = residuals_.data();
    }
    for (uint32_t j = 0; j < shape.m; ++j) {
        const uint32_t begin = shape.piece_begin(j);
        pieces_[j].multiply(
            blas_, stream_,
            {residuals + begin, e.count, shape.piece_begin(j + 1) - begin, shape.dims}, tile_);
        find_codes(pieces_[j], tile_, e.count, e.codes + j, shape.m, stream_);
    }
    if (e.offsets)
        launch("offsets_of", offsets_of,
               {static_cast<unsigned>(divide_up(e.count, size_t{8})), 256, 0, stream_},
               model_.view(), e);
}

}  // namespace pgwarp::gpu
