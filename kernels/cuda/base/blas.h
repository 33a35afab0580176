// cuBLAS: check() for its calls, and owned handles.
#pragma once

#include "kernels/cuda/base/check.h"

#include <cublas_v2.h>
#include <utility>

namespace pgwarp::gpu {

[[noreturn]] void fail(cublasStatus_t status, const char* what);

inline void check(cublasStatus_t status, const char* what) {
    if (status != CUBLAS_STATUS_SUCCESS) fail(status, what);
}

// One handle per stream: two streams must not use a handle's workspace at the same time. The handle
// is created on first use, because cublasCreate is slow and many streams never need it.
class Blas {
  public:
    explicit Blas(cudaStream_t stream) : stream_(stream) {}
    ~Blas() {
        if (handle_) cublasDestroy(handle_);
    }
    Blas(const Blas&) = delete;
    Blas& operator=(const Blas&) = delete;
    operator cublasHandle_t() const {
        if (!handle_) {
            check(cublasCreate(&handle_), "cublasCreate");
            const cublasStatus_t status = cublasSetStream(handle_, stream_);
            if (status != CUBLAS_STATUS_SUCCESS) {
                cublasDestroy(std::exchange(handle_, nullptr));
                fail(status, "cublasSetStream");
            }
        }
        return handle_;
    }

  private:
    cudaStream_t stream_;
    mutable cublasHandle_t handle_ = nullptr;
};

}  // namespace pgwarp::gpu
