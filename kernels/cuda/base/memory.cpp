#include "kernels/cuda/base/memory.h"

namespace pgwarp::gpu {

void* CudaSegments::take_segment(size_t bytes) {
    void* segment = nullptr;
    const cudaError_t error = cudaMalloc(&segment, bytes);
    if (error == cudaErrorMemoryAllocation) {
        cudaGetLastError();
        return nullptr;
    }
    check(error, "cudaMalloc");
    return segment;
}

void CudaSegments::give_segment(void* segment) noexcept {
    cudaFree(segment);
}

}  // namespace pgwarp::gpu
