// A best-fit allocator of device memory under one budget.
//
// cudaMalloc and cudaFree are slow and synchronize the device. So the pool allocates large segments
// and cuts blocks from them: allocate() takes the smallest free block that is large enough, free()
// coalesces a block with its free neighbors. The pool returns empty segments when the budget is
// needed for another segment, or on trim().
//
// free() takes effect at once. The caller makes sure that the device no longer uses the block, or
// that its next user follows in the same stream.
#pragma once

#include "kernels/device.h"
#include "kernels/memory_charge.h"

#include <cstddef>
#include <map>
#include <mutex>
#include <set>
#include <utility>

namespace pgwarp::gpu {

class SegmentSource {
  public:
    // Null if out of memory. Throws on any other error.
    virtual void* take_segment(size_t bytes) = 0;
    virtual void give_segment(void* segment) noexcept = 0;

  protected:
    ~SegmentSource() = default;
};

class SegmentPool {
  public:
    // With a `charge`, segments are charged to it, and `budget` limits what all processes that
    // share the charge hold together.
    SegmentPool(SegmentSource& source, size_t budget, MemoryCharge* charge = nullptr)
        : source_(source), budget_(budget), charge_(charge) {}
    ~SegmentPool();
    SegmentPool(const SegmentPool&) = delete;
    SegmentPool& operator=(const SegmentPool&) = delete;

    // Aligned to 512 bytes; null for 0 bytes. Throws OutOfDeviceMemory.
    void* allocate(size_t bytes);
    void free(void* block) noexcept;

    // Returns empty segments to the source until at most `keep` bytes of them are left.
    void trim(size_t keep = 0) noexcept;

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
    size_t segment_room() const noexcept;
    void release_empty_segments(size_t keep = 0) noexcept;

    SegmentSource& source_;
    mutable std::mutex mutex_;
    const size_t budget_;
    MemoryCharge* charge_;
    size_t used_ = 0;
    size_t reserved_ = 0;
    size_t empty_ = 0;  // bytes of reserved_ in segments without a block in use
    std::map<Address, size_t> segments_;
    std::map<Address, Block> taken_;
    std::map<Address, Block> free_;                 // by address, to coalesce neighbors
    std::set<std::pair<size_t, Address>> by_size_;  // the blocks of free_
};

}  // namespace pgwarp::gpu
