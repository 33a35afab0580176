// Trains a product quantizer on the device, and encodes residuals with it. Sub-quantizers of four
// bits are trained as halves of bytes (nibbles.h).
#pragma once

#include "kernels/cuda/train/dataset.h"
#include "kernels/cuda/train/encode.h"

#include <vector>

namespace pgwarp::gpu {

// The codes of a step's rows, and the codebook that the step has moved. With four bits, shape,
// codes and codebook are those of the halves.
struct CodedRows {
    QuantizerShape shape{};
    Buffer<uint8_t> codes;        // (count)(shape.m), on the device, as of before the move
    std::vector<float> codebook;  // (shape.dims)(256)
};

class ProductCoder {
  public:
    ProductCoder(const Context& context, cudaStream_t stream, const Blas& blas)
        : context_(context), stream_(stream), blas_(blas) {}

    // See Executor::codebook_start(), codebook_step() and encode_residuals().
    void start(const DeviceRows& residuals, const QuantizerShape& shape, uint64_t seed,
               float* codebook) const;
    double step(const DeviceRows& residuals, const QuantizerShape& shape, float* codebook,
                CodedRows* coded = nullptr);
    void encode_residuals(const DeviceRows& residuals, size_t count, const Quantizer& quantizer,
                          uint8_t* codes);

  private:
    size_t chunk_rows(uint32_t dims) const;
    // One k-means step of all sub-quantizers. The first `words` codewords of each are distinct, the
    // others repeat them. `all_codes`, (count)(m) on the device, where not null, receives the codes
    // before the move.
    double move(const DeviceRows& rows, const QuantizerShape& shape, uint32_t words,
                float* codebook, uint8_t* all_codes);
    void reuse_codewords(const DeviceRows& rows, const Model& model, Encoder& encoder,
                         const std::vector<size_t>& used, double error, float* codebook);

    const Context& context_;
    cudaStream_t stream_;
    const Blas& blas_;
};

}  // namespace pgwarp::gpu
