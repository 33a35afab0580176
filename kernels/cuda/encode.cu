// The encoder's kernel. A block takes 128 rows. Their residuals go to shared memory, dimension by
// dimension, as many whole pieces at a time as there is room for; each warp then takes pieces of
// its own, for all 128 rows, four rows a lane, eight codewords at a time: 32 sums in registers,
// fed by loads that serve many of them. A codeword is ranked by |w|^2 / 2 - <r, w>, which orders
// as |r - w|^2 does. Only the smallest of eight is compared with the best so far; which of the
// eight it was is found once, at the end.

#include "kernels/cuda/encode.h"

#include "kernels/cuda/assign.cuh"
#include "kernels/cuda/launch.cuh"

#include <cuda/std/limits>

namespace pgwarp::gpu {

namespace {

constexpr unsigned threads = 128;
constexpr unsigned warps = threads / 32;
constexpr uint32_t tile_rows = 128;
constexpr int lane_rows = tile_rows / 32;
constexpr int tile_words = 8;
constexpr uint32_t longest_piece = 16;  // dimensions, of those that this kernel takes
constexpr uint32_t slab_dims = 64;

struct EncodeArguments {
    DeviceModel model;
    DeviceEncoding encoding;
    ProductRows products;
    uint32_t piece_room;  // dimensions of the longest piece
};

struct Slab {
    float* residuals;   // (slab_dims)(tile_rows), row 4 l + i is the i-th of lane l
    float* words;       // a warp's codebook piece, (piece_room)(256)
    uint8_t* codes;     // (tile_rows)(slab_dims)
    double* offsets;    // (warps)(tile_rows)
    uint32_t* lists;    // (tile_rows)
};

__device__ Slab slab_of(const EncodeArguments& a) {
    char* at = shared_memory<char>();
    const auto take = [&](size_t bytes) {
        char* here = at;
        at += bytes;
        return here;
    };
    Slab slab;
    slab.offsets = reinterpret_cast<double*>(take(warps * tile_rows * sizeof(double)));
    slab.residuals = reinterpret_cast<float*>(take(slab_dims * tile_rows * sizeof(float)));
    slab.words = reinterpret_cast<float*>(take(warps * a.piece_room * codewords * sizeof(float))) +
                 threadIdx.x / 32 * a.piece_room * codewords;
    slab.lists = reinterpret_cast<uint32_t*>(take(tile_rows * sizeof(uint32_t)));
    slab.codes = reinterpret_cast<uint8_t*>(take(tile_rows * slab_dims));
    return slab;
}
size_t slab_bytes(uint32_t piece_room) {
    return warps * tile_rows * sizeof(double) + slab_dims * tile_rows * sizeof(float) +
           warps * piece_room * codewords * sizeof(float) + tile_rows * sizeof(uint32_t) +
           tile_rows * slab_dims;
}

// Thread t takes row t: its loads fetch 16 bytes of a row, and neighbours store side by side.
__device__ void load_residuals(const EncodeArguments& a, const Slab& slab, size_t first_row,
                               uint32_t first_dim, uint32_t dims) {
    const uint32_t all = a.model.shape.dims;
    const size_t row = first_row + threadIdx.x;
    const bool inside = row < a.encoding.count;
    const float* from = a.encoding.rows + row * all + first_dim;
    const float* centroid =
        a.encoding.lists && inside
            ? a.model.centroids + size_t{slab.lists[threadIdx.x]} * all + first_dim
            : nullptr;
    float* to = slab.residuals + threadIdx.x;
    if (all % 4 == 0 && first_dim % 4 == 0) {
        uint32_t d = 0;
        for (; d + 4 <= dims; d += 4) {
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
        for (; d < dims; ++d)
            to[d * tile_rows] = inside ? from[d] - (centroid ? centroid[d] : 0.0f) : 0.0f;
        return;
    }
    for (uint32_t d = 0; d < dims; ++d)
        to[d * tile_rows] = inside ? from[d] - (centroid ? centroid[d] : 0.0f) : 0.0f;
}

// Eight codewords from `word` on against four rows: ranks[row][i].
__device__ __forceinline__ void rank_words(const float* half_norms, const float* words,
                                           const float* residuals, uint32_t dims, uint32_t word,
                                           float (&ranks)[lane_rows][tile_words]) {
    const auto load = [](const float* from, float (&eight)[tile_words]) {
        const float4 a = *reinterpret_cast<const float4*>(from);
        const float4 b = *reinterpret_cast<const float4*>(from + 4);
        eight[0] = a.x, eight[1] = a.y, eight[2] = a.z, eight[3] = a.w;
        eight[4] = b.x, eight[5] = b.y, eight[6] = b.z, eight[7] = b.w;
    };
    float eight[tile_words];
    load(half_norms + word, eight);
#pragma unroll
    for (int r = 0; r < lane_rows; ++r)
#pragma unroll
        for (int i = 0; i < tile_words; ++i) ranks[r][i] = eight[i];
#pragma unroll 4
    for (uint32_t d = 0; d < dims; ++d) {
        load(words + d * codewords + word, eight);
        const float4 x = *reinterpret_cast<const float4*>(residuals + d * tile_rows);
        const float row[lane_rows] = {x.x, x.y, x.z, x.w};
#pragma unroll
        for (int r = 0; r < lane_rows; ++r)
#pragma unroll
            for (int i = 0; i < tile_words; ++i)
                ranks[r][i] = fmaf(-row[r], eight[i], ranks[r][i]);
    }
}

// The nearest codeword of each of this lane's rows; the lowest number among equals.
__device__ __forceinline__ void nearest_words(const float* half_norms, const float* words,
                                              const float* residuals, uint32_t dims,
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
        float ranks[lane_rows][tile_words];
        rank_words(half_norms, words, residuals, dims, word, ranks);
#pragma unroll
        for (int r = 0; r < lane_rows; ++r) {
            float least = ranks[r][0];
#pragma unroll
            for (int i = 1; i < tile_words; ++i) least = fminf(least, ranks[r][i]);
            if (least < best[r]) best[r] = least, best_word[r] = word;
        }
    }
    // The same sums again, for the eight that hold the best, in the same order of dimensions.
#pragma unroll
    for (int r = 0; r < lane_rows; ++r) {
        code[r] = best_word[r];
#pragma unroll 1
        for (int i = tile_words - 1; i >= 0; --i) {
            const uint32_t word = best_word[r] + i;
            float rank = half_norms[word];
            for (uint32_t d = 0; d < dims; ++d)
                rank = fmaf(-residuals[d * tile_rows + r], words[d * codewords + word], rank);
            if (rank == best[r]) code[r] = word;
        }
    }
}

// One warp, one piece: codes into the slab; returns the piece's part of the offsets in `offset`.
__device__ void encode_piece(const EncodeArguments& a, const Slab& slab, uint32_t piece,
                             uint32_t slab_piece, uint32_t slab_dim, double (&offset)[lane_rows]) {
    const DeviceModel& model = a.model;
    const uint32_t begin = model.piece_begins[piece], dims = model.piece_begins[piece + 1] - begin;
    const float4* from = reinterpret_cast<const float4*>(model.codebook + size_t{begin} * codewords);
    __syncwarp();
    for (uint32_t i = lane_id(); i < dims * codewords / 4; i += 32)
        reinterpret_cast<float4*>(slab.words)[i] = __ldg(from + i);
    __syncwarp();
    const float* residuals = slab.residuals + slab_dim * tile_rows + lane_id() * lane_rows;
    uint32_t code[lane_rows];
    nearest_words(model.half_norms + size_t{piece} * codewords, slab.words, residuals, dims, code);
#pragma unroll
    for (int r = 0; r < lane_rows; ++r) {
        const uint32_t row = lane_id() * lane_rows + r;
        slab.codes[row * slab_dims + slab_piece] = static_cast<uint8_t>(code[r]);
        if (!a.encoding.offsets || model.shape.metric == Metric::inner_product) continue;
        const float* centroid = model.centroids + size_t{slab.lists[row]} * model.shape.dims + begin;
        for (uint32_t d = 0; d < dims; ++d) {
            const double w = slab.words[d * codewords + code[r]];
            offset[r] += w * (w + 2.0 * centroid[d]);
        }
    }
}

__device__ void find_lists(const EncodeArguments& a, const Slab& slab, size_t first_row) {
    for (uint32_t i = threadIdx.x / 32; i < tile_rows; i += warps) {
        const size_t row = first_row + i;
        if (row >= a.encoding.count) {
            if (lane_id() == 0) slab.lists[i] = 0;
            continue;
        }
        const uint32_t list = a.products.products ? key_index(nearest_key(a.products, row))
                                                  : a.encoding.lists[row];
        if (lane_id() != 0) continue;
        slab.lists[i] = list;
        if (a.products.products) a.encoding.lists[row] = list;
    }
}

__device__ void write_codes(const EncodeArguments& a, const Slab& slab, size_t first_row,
                            uint32_t first_piece, uint32_t pieces) {
    const size_t rows = min(size_t{tile_rows}, a.encoding.count - first_row);
    const uint32_t m = a.model.shape.m;
    if (m % 4 == 0 && first_piece % 4 == 0 && pieces % 4 == 0) {
        const uint32_t words = pieces / 4;
        for (uint32_t i = threadIdx.x; i < rows * words; i += threads) {
            const uint32_t row = i / words, word = i % words;
            const auto four =
                reinterpret_cast<const uint32_t*>(slab.codes + row * slab_dims)[word];
            uint8_t* to = a.encoding.codes + (first_row + row) * m + first_piece;
            reinterpret_cast<uint32_t*>(to)[word] = four;
        }
        return;
    }
    for (uint32_t i = threadIdx.x; i < rows * pieces; i += threads) {
        const uint32_t row = i / pieces, piece = i % pieces;
        a.encoding.codes[(first_row + row) * m + first_piece + piece] =
            slab.codes[row * slab_dims + piece];
    }
}

__global__ void __launch_bounds__(threads, 4) encode_rows(EncodeArguments a) {
    const Slab slab = slab_of(a);
    const DeviceModel& model = a.model;
    const size_t first_row = size_t{blockIdx.x} * tile_rows;
    if (a.encoding.lists) find_lists(a, slab, first_row);
    double offset[lane_rows] = {};

    for (uint32_t piece = 0; piece < model.shape.m;) {
        const uint32_t first_piece = piece, first_dim = model.piece_begins[piece];
        while (piece < model.shape.m && model.piece_begins[piece + 1] - first_dim <= slab_dims)
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
        slab.offsets[threadIdx.x / 32 * tile_rows + lane_id() * lane_rows + r] = offset[r];
    __syncthreads();
    if (first_row + threadIdx.x >= a.encoding.count) return;
    double sum = 0;
    for (uint32_t w = 0; w < warps; ++w) sum += slab.offsets[w * tile_rows + threadIdx.x];
    a.encoding.offsets[first_row + threadIdx.x] = static_cast<float>(sum);
}

__global__ void subtract(DeviceModel model, DeviceEncoding e, float* residuals) {
    const uint32_t dims = model.shape.dims;
    for (size_t i = size_t{blockIdx.x} * blockDim.x + threadIdx.x; i < e.count * dims;
         i += size_t{gridDim.x} * blockDim.x) {
        const size_t row = i / dims, d = i % dims;
        residuals[i] = e.rows[i] - model.centroids[size_t{e.lists[row]} * dims + d];
    }
}

// A warp a row.
__global__ void offsets_of(DeviceModel model, DeviceEncoding e) {
    const size_t row = (size_t{blockIdx.x} * blockDim.x + threadIdx.x) / 32;
    if (row >= e.count) return;
    double sum = 0;
    if (model.shape.metric != Metric::inner_product) {
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

}  // namespace

Encoder::Encoder(const Context& context, cudaStream_t stream, const Blas& blas, const Model& model)
    : context_(context), stream_(stream), blas_(blas), model_(model) {
    refresh();
}

void Encoder::refresh() {
    if (model_.longest_piece() <= longest_piece) return;
    const DeviceModel& view = model_.view();
    codewords_.grow(context_.memory, size_t{view.shape.dims} * codewords);
    transpose_codebook(view, codewords_.data(), stream_);
    pieces_.clear();
    for (uint32_t j = 0; j < view.shape.m; ++j) {
        const uint32_t begin = view.shape.piece_begin(j);
        pieces_.emplace_back(context_, stream_, codewords_ + size_t{begin} * codewords, codewords,
                             view.shape.piece_begin(j + 1) - begin);
    }
}

void Encoder::encode(const DeviceEncoding& e) {
    if (e.count == 0) return;
    if (model_.longest_piece() > longest_piece) {
        encode_long_pieces(e);
        return;
    }
    EncodeArguments arguments{model_.view(), e, {}, model_.longest_piece()};
    if (e.tile)
        arguments.products = {e.tile->products.data(), e.centroids->stride(),
                              e.centroids->norms(), e.centroids->count()};
    launch("encode_rows", encode_rows,
           {static_cast<unsigned>(divide_up(e.count, size_t{tile_rows})), threads,
            slab_bytes(model_.longest_piece()), stream_},
           arguments);
}

// Few pieces, long ones: each is a search for the nearest of 256 centroids.
void Encoder::encode_long_pieces(const DeviceEncoding& e) {
    const QuantizerShape& shape = model_.view().shape;
    if (e.tile) find_nearest(*e.centroids, *e.tile, e.count, {e.lists, nullptr}, stream_);
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
