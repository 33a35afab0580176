// Trains rotations (kernels/rotation.h) with a device. The device computes matrix products and
// codebook steps, LAPACK on the host the decompositions. Rows are copied between the two; a
// rotation needs few.
#pragma once

#include "kernels/cuda/base/context.h"
#include "kernels/cuda/base/stream.h"
#include "kernels/cuda/base/upload.h"
#include "kernels/executor.h"

#include <vector>

namespace pgwarp::gpu {

class RotationTrainer {
  public:
    // `executor` trains the codebooks.
    RotationTrainer(Executor& executor, const Context& context, Uploader& uploader,
                    cudaStream_t stream, const Blas& blas)
        : executor_(executor),
          context_(context),
          uploader_(uploader),
          stream_(stream),
          blas_(blas) {}

    // Like the functions of the same names in rotation.h. All pointers are to host memory.
    void rotate(const Rotation& rotation, const float* rows, size_t count, float* out);
    void principal_directions(std::vector<float> rows, uint32_t dims, uint32_t to, float* matrix);
    void rotation_start(const QuantizerShape& shape, const std::vector<float>& residuals,
                        uint32_t from, float* matrix);
    double rotation_step(const QuantizerShape& shape, const std::vector<float>& residuals,
                         uint32_t from, float* matrix, float* codebook);

  private:
    void outer_products(const float* a, uint32_t a_dims, const float* b, uint32_t b_dims,
                        size_t count, float* out);
    double error_after_steps(const QuantizerShape& shape, const float* residuals, size_t count,
                             uint32_t from, const float* matrix);

    Executor& executor_;
    const Context& context_;
    Uploader& uploader_;
    cudaStream_t stream_;
    const Blas& blas_;
};

}  // namespace pgwarp::gpu
