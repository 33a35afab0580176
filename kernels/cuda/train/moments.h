// Means, variances and sums of outer products of rows on the device.
#pragma once

#include "kernels/cuda/train/dataset.h"

namespace pgwarp::gpu {

// The mean of the first `count` rows, (dims), on the device. `count` is positive.
Buffer<float> mean_of(const Context& context, const DeviceRows& rows, size_t count,
                      cudaStream_t stream);
// Their mean squared distance from it.
double variance_of(const Context& context, const DeviceRows& rows, size_t count,
                   cudaStream_t stream);

// Sums a_i^T b_i over pairs of rows. Sums of up to `chunk_rows` rows are float32; they add up in
// float64, on the host.
class OuterSum {
  public:
    static constexpr size_t chunk_rows = 8192;
    OuterSum(const Context& context, const Blas& blas, cudaStream_t stream, uint32_t a_dims,
             uint32_t b_dims);
    // a: (count)(a_dims), b: (count)(b_dims), on the device. Waits for the stream.
    void add(const float* a, const float* b, size_t count);
    // (a_dims)(b_dims), in host memory
    void finish(float* out) const;

  private:
    const Blas& blas_;
    cudaStream_t stream_;
    uint32_t a_dims_, b_dims_;
    Buffer<float> product_;
    std::vector<float> part_;
    std::vector<double> sums_;
};

}  // namespace pgwarp::gpu
