// Replaces unused codewords by pieces of residuals, drawn with probability proportional to their
// squared error, as on the CPU (product_quantizer.h).
//
// The device draws by selection: with a random u for each piece of each row, the smallest
// -log(u) / error are a weighted sample without replacement (Efraimidis and Spirakis). u depends on
// the seed, the row and the piece only, so that training is reproducible.
#pragma once

#include "kernels/cuda/base/context.h"
#include "kernels/cuda/lists/model.h"

#include <vector>

namespace pgwarp::gpu {

class PieceDraw {
  public:
    // Draws `draws` rows for each of `pieces` (numbers of sub-quantizers), from chunks of up to
    // `chunk_rows` rows. `mean_error`: approximate mean squared error of a piece, which scales the
    // selection's values.
    PieceDraw(const Context& context, cudaStream_t stream, const std::vector<uint32_t>& pieces,
              uint32_t draws, size_t chunk_rows, uint64_t seed, double mean_error);

    // Adds rows [first, first + count) of the residuals, with their codes.
    void add(const DeviceModel& model, const float* residuals, const uint8_t* codes, size_t first,
             size_t count);

    // Returns up to `draws` rows for each pieces[i], in the order they were drawn. Waits for the
    // stream.
    std::vector<std::vector<uint32_t>> finish();

  private:
    cudaStream_t stream_;
    uint32_t piece_count_;
    uint32_t draws_;
    size_t stride_;
    uint32_t group_;  // pieces of one launch
    uint64_t seed_;
    float mean_error_;
    Buffer<uint32_t> pieces_;
    Buffer<float> chances_;  // (group)(stride)
    Buffer<uint64_t> keys_;  // (pieces)(draws)
};

}  // namespace pgwarp::gpu
