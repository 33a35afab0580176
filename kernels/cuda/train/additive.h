// Trains and encodes with an additive quantizer (kernels/additive.h) on the device.
#pragma once

#include "kernels/additive.h"
#include "kernels/cuda/train/dataset.h"
#include "kernels/cuda/train/lsq_encoder.h"

namespace pgwarp::gpu {

class AdditiveCoder {
  public:
    AdditiveCoder(const Context& context, Uploader& uploader, cudaStream_t stream, const Blas& blas)
        : context_(context), uploader_(uploader), stream_(stream), blas_(blas) {}

    // See Executor::additive_step() and encode().
    double step(const DeviceRows& rows, const AdditiveStep& step);
    void encode(const Quantizer& quantizer, const Encoding& encoding);
    // See Executor::encode_residuals().
    void encode_residuals(const DeviceRows& residuals, size_t count, const Quantizer& quantizer,
                          uint8_t* codes);

  private:
    // With the tables for the quantizer's codebook.
    LsqEncoder& encoder_for(const Quantizer& quantizer);

    const Context& context_;
    Uploader& uploader_;
    cudaStream_t stream_;
    const Blas& blas_;
    KeptLsqEncoder<LsqEncoder> kept_;
};

}  // namespace pgwarp::gpu
