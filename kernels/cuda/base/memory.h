// Device memory under one budget; owned arrays in device memory and in pinned host memory.
#pragma once

#include <cstddef>
#include <utility>

namespace pgwarp {

class MemoryCharge;
struct DeviceMemoryUse;

namespace gpu {

// A SegmentPool whose segments are the device's.
class DeviceMemory {
  public:
    explicit DeviceMemory(size_t budget, MemoryCharge* charge = nullptr);
    ~DeviceMemory();
    DeviceMemory(const DeviceMemory&) = delete;
    DeviceMemory& operator=(const DeviceMemory&) = delete;

    void* allocate(size_t bytes);
    void free(void* block) noexcept;
    void trim(size_t keep = 0) noexcept;
    DeviceMemoryUse use() const noexcept;
    size_t available() const noexcept;

  private:
    struct Pool;
    Pool* pool_;
};

// Pinned, mapped host memory. Throws OutOfHostMemory.
void* allocate_pinned(size_t bytes);
void free_pinned(void* data) noexcept;

// An owned array in device memory.
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
    // Makes room for `count` elements. Growing discards the contents.
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

// An owned array in pinned, mapped host memory: host and device use the same addresses.
template <typename T>
class PinnedBuffer {
  public:
    PinnedBuffer() = default;
    explicit PinnedBuffer(size_t count) : count_(count) {
        if (count != 0) data_ = static_cast<T*>(allocate_pinned(count * sizeof(T)));
    }
    ~PinnedBuffer() {
        if (data_) free_pinned(data_);
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

}  // namespace gpu
}  // namespace pgwarp
