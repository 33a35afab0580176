// Trains rotations (kernels/rotation.h) with a device. Rows stay there: the device computes matrix
// products and codebook steps, LAPACK on the host the decompositions.
#pragma once

#include "kernels/cuda/train/dataset.h"
#include "kernels/cuda/train/product.h"

namespace pgwarp::gpu {

class RotationTrainer {
  public:
    // `codes` trains the codebooks.
    RotationTrainer(ProductCoder& codes, const Context& context, Uploader& uploader,
                    cudaStream_t stream, const Blas& blas)
        : codes_(codes), context_(context), uploader_(uploader), stream_(stream), blas_(blas) {}

    // Like rotate() in rotation.h: all pointers are to host memory.
    void rotate(const Rotation& rotation, const float* rows, size_t count, float* out);

    // Like the functions of Executor, for the first `count` rows. `matrix` and `codebook` are in
    // host memory.
    void principal_directions(const DeviceRows& rows, size_t count, uint32_t to, float* matrix);
    void start(const DeviceRows& residuals, size_t count, const QuantizerShape& shape,
               uint64_t seed, float* matrix, float* codebook);
    double step(const DeviceRows& residuals, size_t count, const QuantizerShape& shape,
                float* matrix, float* codebook);

  private:
    Buffer<float> rotated_rows(const DeviceRows& rows, size_t count, const Rotation& rotation);
    double dropped(const DeviceRows& rows, size_t count, const Buffer<float>& rotated);
    double error_after_steps(const DeviceRows& residuals, size_t count, const QuantizerShape& shape,
                             const float* matrix);

    ProductCoder& codes_;
    const Context& context_;
    Uploader& uploader_;
    cudaStream_t stream_;
    const Blas& blas_;
};

}  // namespace pgwarp::gpu
