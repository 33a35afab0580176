#include "kernels/cuda/base/memory.h"

#include "kernels/cuda/base/check.h"
#include "kernels/cuda/base/segments.h"
#include "kernels/device.h"

namespace pgwarp::gpu {

namespace {

class CudaSegments : public SegmentSource {
  public:
    void* take_segment(size_t bytes) override {
        void* segment = nullptr;
        const cudaError_t error = cudaMalloc(&segment, bytes);
        if (error == cudaErrorMemoryAllocation) {
            cudaGetLastError();
            return nullptr;
        }
        check(error, "cudaMalloc");
        return segment;
    }
    void give_segment(void* segment) noexcept override { cudaFree(segment); }
};

}  // namespace

// CudaSegments is the first base: it is constructed before the pool and destroyed after it.
struct DeviceMemory::Pool final : CudaSegments, SegmentPool {
    Pool(size_t budget, MemoryCharge* charge)
        : SegmentPool(static_cast<SegmentSource&>(*this), budget, charge) {}
};

DeviceMemory::DeviceMemory(size_t budget, MemoryCharge* charge) : pool_(new Pool(budget, charge)) {}

DeviceMemory::~DeviceMemory() {
    delete pool_;
}

void* DeviceMemory::allocate(size_t bytes) {
    return pool_->allocate(bytes);
}

void DeviceMemory::free(void* block) noexcept {
    pool_->free(block);
}

void DeviceMemory::trim(size_t keep) noexcept {
    pool_->trim(keep);
}

DeviceMemoryUse DeviceMemory::use() const noexcept {
    return pool_->use();
}

size_t DeviceMemory::available() const noexcept {
    return pool_->available();
}

void* allocate_pinned(size_t bytes) {
    void* data = nullptr;
    const cudaError_t error =
        cudaHostAlloc(&data, bytes, cudaHostAllocPortable | cudaHostAllocMapped);
    if (error == cudaErrorMemoryAllocation) {
        cudaGetLastError();
        throw OutOfHostMemory(bytes);
    }
    check(error, "cudaHostAlloc");
    return data;
}

void free_pinned(void* data) noexcept {
    cudaFreeHost(data);
}

}  // namespace pgwarp::gpu
