// Blocks of memory under one budget, cut from segments.
//
// Taking memory from a device is slow and stops it, so that is done in segments, and blocks are cut
// from those: the smallest free block that is large enough, neighbours joined again when freed.
// Segments that stand empty are given back when the budget is needed elsewhere, or by trim().
//
// Freeing is immediate: whoever frees makes sure that the device is done with the block, or that
// its next user comes after this one in the same stream.
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
    // Null: there is no memory. Anything else that goes wrong is thrown.
    virtual void* take_segment(size_t bytes) = 0;
    virtual void give_segment(void* segment) noexcept = 0;

  protected:
    ~SegmentSource() = default;
};

class SegmentPool {
  public:
    // What it takes from the source is charged to `charge`, where that is not null, with the budget
    // as limit: that is what all processes may hold together then.
    SegmentPool(SegmentSource& source, size_t budget, MemoryCharge* charge = nullptr)
        : source_(source), budget_(budget), charge_(charge) {}
    ~SegmentPool();
    SegmentPool(const SegmentPool&) = delete;
    SegmentPool& operator=(const SegmentPool&) = delete;

    // Aligned to 512 bytes. Throws OutOfDeviceMemory; 0 bytes are null.
    void* allocate(size_t bytes);
    void free(void* block) noexcept;

    // Gives segments that stand empty back, but for about `keep` bytes of them.
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
    size_t empty_ = 0;  // of the reserved: segments without a block in use
    std::map<Address, size_t> segments_;
    std::map<Address, Block> taken_;
    std::map<Address, Block> free_;                 // by address, for joining neighbours
    std::set<std::pair<size_t, Address>> by_size_;  // the same blocks
};

}  // namespace pgwarp::gpu
