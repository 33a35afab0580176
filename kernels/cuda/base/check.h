// Every call into CUDA goes through check(): what fails becomes an exception with the call's name.
#pragma once

#include "kernels/device.h"

#include <cublas_v2.h>
#include <cuda_runtime_api.h>

namespace pgwarp::gpu {

[[noreturn]] void fail(cudaError_t error, const char* what);
[[noreturn]] void fail(cublasStatus_t status, const char* what);

inline void check(cudaError_t error, const char* what) {
    if (error != cudaSuccess) fail(error, what);
}
inline void check(cublasStatus_t status, const char* what) {
    if (status != CUBLAS_STATUS_SUCCESS) fail(status, what);
}

// After a launch: a wrong configuration shows at once, a fault in the kernel at the next
// synchronisation.
inline void check_launch(const char* kernel) {
    check(cudaGetLastError(), kernel);
}

// Makes `device` the calling thread's.
inline void use_device(int device) {
    check(cudaSetDevice(device), "cudaSetDevice");
}

}  // namespace pgwarp::gpu
