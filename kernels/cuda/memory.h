// The device's memory under one budget.
//
// cudaMalloc() is slow and stops the device, so memory is taken from it in segments, and blocks
// are cut from those: the smallest free block that is large enough, neighbours joined again when
// freed. Segments that stand empty are given back when the budget is needed elsewhere.
//
// Freeing is immediate: whoever frees makes sure that the device is done with the block, or that
// its next user comes after this one in the same stream.
#pragma once

#include "kernels/cuda/check.h"

#include <cstddef>
#include <map>
#include <mutex>
#include <set>
#include <utility>

namespace pgwarp::gpu {

class DeviceMemory {
  public:
    explicit DeviceMemory(size_t budget) : budget_(budget) {}
    ~DeviceMemory();
    DeviceMemory(const DeviceMemory&) = delete;
    DeviceMemory& operator=(const DeviceMemory&) = delete;

    // Aligned to 512 bytes. Throws OutOfDeviceMemory; 0 bytes are null.
    void* allocate(size_t bytes);
    void free(void* block) noexcept;

    // Gives segments that stand empty back to the device.
    void trim() noexcept;

    DeviceMemoryUse use() const noexcept;
    size_t available() const noexcept;

  private:
    using Address = char*;
    struct Block {
        size_t bytes;
        Address segment;
    };

    void* take_free(size_t bytes);
    void add_segment(size_t bytes, size_t wanted);
    void release_empty_segments() noexcept;

    mutable std::mutex mutex_;
    const size_t budget_;
    size_t used_ = 0;
    size_t reserved_ = 0;
    std::map<Address, size_t> segments_;
    std::map<Address, Block> taken_;
    std::map<Address, Block> free_;                 // by address, for joining neighbours
    std::set<std::pair<size_t, Address>> by_size_;  // the same blocks
};

// An array on the device, owned.
template <typename T>
class Buffer {
  public:
    Buffer() = default;
    Buffer(DeviceMemory& memory, size_t count)
        : memory_(&memory),
          data_(static_cast<T*>(memory.allocate(count * sizeof(T)))),
          count_(count) {}
    ~Buffer() { reset(); }
    Buffer(Buffer&& other) noexcept { *this = std::move(other); }
    Buffer& operator=(Buffer&& other) noexcept {
        std::swap(memory_, other.memory_);
        std::swap(data_, other.data_);
        std::swap(count_, other.count_);
        return *this;
    }

    void reset() noexcept {
        if (data_) memory_->free(data_);
        data_ = nullptr;
        count_ = 0;
    }
    // Room for `count`; what was there is lost where it grows.
    void grow(DeviceMemory& memory, size_t count) {
        if (count <= count_) return;
        reset();
        *this = Buffer(memory, count);
    }

    T* data() const { return data_; }
    size_t size() const { return count_; }
    T* operator+(size_t i) const { return data_ + i; }

  private:
    DeviceMemory* memory_ = nullptr;
    T* data_ = nullptr;
    size_t count_ = 0;
};

// An array of host memory that the device reaches, owned. Every address is the same on both sides.
template <typename T>
class PinnedBuffer {
  public:
    PinnedBuffer() = default;
    explicit PinnedBuffer(size_t count) : count_(count) {
        if (count == 0) return;
        void* data = nullptr;
        const cudaError_t error =
            cudaHostAlloc(&data, count * sizeof(T), cudaHostAllocPortable | cudaHostAllocMapped);
        if (error == cudaErrorMemoryAllocation) {
            cudaGetLastError();
            throw OutOfHostMemory(count * sizeof(T));
        }
        check(error, "cudaHostAlloc");
        data_ = static_cast<T*>(data);
    }
    ~PinnedBuffer() {
        if (data_) cudaFreeHost(data_);
    }
    PinnedBuffer(PinnedBuffer&& other) noexcept { *this = std::move(other); }
    PinnedBuffer& operator=(PinnedBuffer&& other) noexcept {
        std::swap(data_, other.data_);
        std::swap(count_, other.count_);
        return *this;
    }
    void grow(size_t count) {
        if (count > count_) *this = PinnedBuffer(count);
    }

    T* data() const { return data_; }
    size_t size() const { return count_; }
    T& operator[](size_t i) const { return data_[i]; }

  private:
    T* data_ = nullptr;
    size_t count_ = 0;
};

}  // namespace pgwarp::gpu
