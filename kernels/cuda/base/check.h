// Every CUDA call goes through check(), which throws DeviceFailure with the call's name; calls of
// cuBLAS do so through blas.h. nvcc reads what a .cu file includes three times: headers of this
// folder include little of the standard library.
#pragma once

#include <cuda_runtime_api.h>

namespace pgwarp::gpu {

[[noreturn]] void fail(cudaError_t error, const char* what);
// Throws DeviceFailure: the device works, but does not fit this operation.
[[noreturn]] void refuse(const char* message);

inline void check(cudaError_t error, const char* what) {
    if (error != cudaSuccess) fail(error, what);
}

// Call after a launch. Reports a bad launch configuration; a fault inside the kernel surfaces at
// the next synchronization.
inline void check_launch(const char* kernel) {
    check(cudaGetLastError(), kernel);
}

// The compute capability of the current device, as __CUDA_ARCH__ writes it.
int current_capability();

// Makes `device` the current device of the calling thread.
inline void use_device(int device) {
    check(cudaSetDevice(device), "cudaSetDevice");
}

}  // namespace pgwarp::gpu
