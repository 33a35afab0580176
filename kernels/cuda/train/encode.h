// Product quantization on the device: computes codes and offsets of rows.
#pragma once

#include "kernels/cuda/products/assign.h"
#include "kernels/cuda/lists/model.h"

#include <vector>

namespace pgwarp::gpu {

// One chunk of rows, all on the device.
struct DeviceEncoding {
    const float* rows = nullptr;  // (count)(dims)
    size_t count = 0;
    // (count); null: rows are residuals already, and get no offsets
    const uint32_t* lists = nullptr;
    uint8_t* codes = nullptr;  // (count)(m)
    float* offsets = nullptr;  // (count), or null
};

// Encodes chunks with one model, on one stream.
class Encoder {
  public:
    // `most_rows`: the largest chunk.
    Encoder(const Context& context, cudaStream_t stream, const Blas& blas, const Model& model,
            size_t most_rows);
    // Call after the model's codebook has changed.
    void refresh();
    void encode(const DeviceEncoding& encoding);

  private:
    void encode_long_pieces(const DeviceEncoding& encoding);

    const Context& context_;
    cudaStream_t stream_;
    const Blas& blas_;
    const Model& model_;
    const bool few_;                // chunks have few rows: use blocks of eight warps
    const uint32_t longest_piece_;  // dimensions that the kernel supports on this device
    // For pieces too long for the kernel: residuals, and each piece's codewords as a matrix.
    Buffer<float> residuals_;
    Buffer<float> codewords_;
    std::vector<CentroidMatrix> pieces_;
    ProductTile tile_;
};

}  // namespace pgwarp::gpu
