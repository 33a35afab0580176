// New places for codewords that nobody uses: pieces of residuals, drawn with a chance in proportion
// to their squared error, as on the CPU (product_quantizer.h).
//
// Among so many rows a draw is a selection: with u a number of chance for each piece of each row,
// those of the smallest -log(u) / error are such a draw, none of them twice (Efraimidis and
// Spirakis). The numbers come from the seed, the row and the piece, so that a training repeats.
#pragma once

#include "kernels/cuda/base/context.h"
#include "kernels/cuda/lists/model.h"

#include <vector>

namespace pgwarp::gpu {

class PieceDraw {
  public:
    // Draws `draws` rows for each of `pieces`, which are sub-quantizers, from chunks of up to
    // `chunk_rows` rows. `mean_error`: of a piece, about.
    PieceDraw(const Context& context, cudaStream_t stream, const std::vector<uint32_t>& pieces,
              uint32_t draws, size_t chunk_rows, uint64_t seed, double mean_error);

    // Rows [first, first + count) of the residuals, with their codes.
    void add(const DeviceModel& model, const float* residuals, const uint8_t* codes, size_t first,
             size_t count);

    // The rows for pieces[i]: up to `draws`, the first drawn first. Waits for the stream.
    std::vector<std::vector<uint32_t>> finish();

  private:
    cudaStream_t stream_;
    uint32_t piece_count_;
    uint32_t draws_;
    size_t stride_;
    uint32_t group_;  // pieces at a time
    uint64_t seed_;
    float mean_error_;
    Buffer<uint32_t> pieces_;
    Buffer<float> chances_;  // (group)(stride)
    Buffer<uint64_t> keys_;  // (pieces)(draws)
};

}  // namespace pgwarp::gpu
