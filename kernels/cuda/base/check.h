// Every CUDA and cuBLAS call goes through check(), which throws DeviceFailure with the call's name.
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

// Call after a launch. Reports a bad launch configuration; a fault inside the kernel surfaces at
// the next synchronization.
inline void check_launch(const char* kernel) {
    check(cudaGetLastError(), kernel);
}

// Makes `device` the current device of the calling thread.
inline void use_device(int device) {
    check(cudaSetDevice(device), "cudaSetDevice");
}

}  // namespace pgwarp::gpu
