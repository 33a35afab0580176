#include "kernels/cuda/train/draw_pieces.h"

#include "kernels/cuda/base/launch.cuh"
#include "kernels/cuda/select/select.h"
#include "kernels/cuda/base/stream.h"

#include <algorithm>

namespace pgwarp::gpu {

namespace {

constexpr unsigned threads = 256;

struct ChanceArguments {
    DeviceModel model;
    const float* residuals;  // (count)(dims)
    const uint8_t* codes;    // (count)(m)
    size_t first, count;
    const uint32_t* pieces;
    size_t stride;
    uint64_t seed;
    float mean_error;
    float* chances;  // (pieces)(stride)
};

// A random number in (0, 1] for each piece of each row: splitmix64, as in kernels/random.h.
__device__ float chance_number(uint64_t seed, uint64_t number) {
    uint64_t z = seed + (number + 1) * 0x9e3779b97f4a7c15ULL;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ULL;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebULL;
    z ^= z >> 31;
    return static_cast<float>((z >> 40) + 1) * 0x1p-24f;
}

// One thread per row, one grid row (blockIdx.y) per piece.
__global__ void __launch_bounds__(threads) chances_of(ChanceArguments a) {
    const size_t row = size_t{blockIdx.x} * threads + threadIdx.x;
    if (row >= a.count) return;
    const DeviceModel& model = a.model;
    const uint32_t piece = a.pieces[blockIdx.y];
    const uint32_t code = a.codes[row * model.shape.m + piece];
    float error = 0;
    for (uint32_t d = model.piece_begins[piece]; d < model.piece_begins[piece + 1]; ++d) {
        const float off =
            a.residuals[row * model.shape.dims + d] - model.codebook[size_t{d} * codewords + code];
        error = fmaf(off, off, error);
    }
    const float u = chance_number(a.seed, (a.first + row) * model.shape.m + piece);
    // A piece that equals its codeword is never drawn.
    a.chances[blockIdx.y * a.stride + row] =
        error > 0 ? -logf(u) * (a.mean_error / error) : __builtin_nanf("");
}

}  // namespace

PieceDraw::PieceDraw(const Context& context, cudaStream_t stream,
                     const std::vector<uint32_t>& pieces, uint32_t draws, size_t chunk_rows,
                     uint64_t seed, double mean_error)
    : stream_(stream),
      piece_count_(static_cast<uint32_t>(pieces.size())),
      draws_(draws),
      stride_((chunk_rows + 3) / 4 * 4),
      group_(static_cast<uint32_t>(
          std::clamp<size_t>(context.scratch() / 4 / (stride_ * sizeof(float)), 1, pieces.size()))),
      seed_(seed),
      mean_error_(static_cast<float>(mean_error)),
      pieces_(context.memory, pieces.size()),
      chances_(context.memory, group_ * stride_),
      keys_(context.memory, pieces.size() * draws) {
    copy_async(pieces_.data(), pieces.data(), pieces.size(), stream);
    check(cudaMemsetAsync(keys_.data(), 0xff, keys_.size() * sizeof(uint64_t), stream),
          "cudaMemsetAsync");
}

void PieceDraw::add(const DeviceModel& model, const float* residuals, const uint8_t* codes,
                    size_t first, size_t count) {
    for (uint32_t piece = 0; piece < piece_count_; piece += group_) {
        const uint32_t here = std::min(group_, piece_count_ - piece);
        launch("chances_of", chances_of,
               {dim3(static_cast<unsigned>(divide_up(count, size_t{threads})), here), threads, 0,
                stream_},
               ChanceArguments{model, residuals, codes, first, count, pieces_ + piece, stride_,
                               seed_, mean_error_, chances_.data()});
        RunningSelect select;
        select.values = chances_.data();
        select.stride = stride_;
        select.rows = here;
        select.length = static_cast<uint32_t>(count);
        select.first_index = static_cast<uint32_t>(first);
        select.k = draws_;
        select.keys = keys_ + size_t{piece} * draws_;
        select_running(select, stream_);
    }
}

std::vector<std::vector<uint32_t>> PieceDraw::finish() {
    std::vector<uint64_t> keys(keys_.size());
    copy_async(keys.data(), keys_.data(), keys.size(), stream_);
    check(cudaStreamSynchronize(stream_), "chances_of");
    std::vector<std::vector<uint32_t>> rows(piece_count_);
    for (uint32_t i = 0; i < piece_count_; ++i) {
        const auto begin = keys.begin() + static_cast<ptrdiff_t>(size_t{i} * draws_);
        std::sort(begin, begin + draws_);
        for (auto key = begin; key != begin + draws_ && *key != no_key; ++key)
            rows[i].push_back(key_index(*key));
    }
    return rows;
}

}  // namespace pgwarp::gpu
