#include "kernels/cuda/base/segments.h"

#include <algorithm>

namespace pgwarp::gpu {

namespace {

constexpr size_t alignment = 512;
constexpr size_t segment_bytes = size_t{64} << 20;

size_t round_up(size_t bytes, size_t to) {
    return (bytes + to - 1) / to * to;
}

}  // namespace

SegmentPool::~SegmentPool() {
    for (const auto& [address, bytes] : segments_) source_.give_segment(address);
    if (charge_) charge_->give(reserved_);
}

void* SegmentPool::allocate(size_t bytes) {
    if (bytes == 0) return nullptr;
    const std::lock_guard lock(mutex_);
    const size_t rounded = round_up(bytes, alignment);
    if (void* block = take_free(rounded)) return block;
    add_segment(rounded, bytes);
    return take_free(rounded);
}

// The best fitting free block, or null.
void* SegmentPool::take_free(size_t bytes) {
    const auto found = by_size_.lower_bound({bytes, nullptr});
    if (found == by_size_.end()) return nullptr;
    const Address address = found->second;
    const Block block = free_.at(address);
    if (block.bytes == segments_.at(block.segment)) empty_ -= block.bytes;
    by_size_.erase(found);
    free_.erase(address);
    if (block.bytes > bytes) {
        free_[address + bytes] = {block.bytes - bytes, block.segment};
        by_size_.insert({block.bytes - bytes, address + bytes});
    }
    taken_[address] = {bytes, block.segment};
    used_ += bytes;
    return address;
}

// Bytes that new segments may still take.
size_t SegmentPool::segment_room() const noexcept {
    const size_t room = budget_ - std::min(reserved_, budget_);
    return charge_ ? std::min(room, charge_->room(budget_)) : room;
}

void SegmentPool::add_segment(size_t bytes, size_t wanted) {
    const auto out_of_memory = [&] {
        return OutOfDeviceMemory(wanted, charge_ ? charge_->taken() : used_, budget_);
    };
    if (bytes > budget_ - std::min(used_, budget_)) throw out_of_memory();
    if (segment_room() < std::max(bytes, segment_bytes)) release_empty_segments();
    const size_t room = segment_room();
    if (bytes > room) throw out_of_memory();  // free memory may suffice, but is fragmented
    const size_t size = std::max(bytes, std::min(segment_bytes, room / alignment * alignment));

    // Another process may have charged memory since segment_room() looked.
    if (charge_ && !charge_->take(size, budget_)) throw out_of_memory();
    void* segment = nullptr;
    try {
        segment = source_.take_segment(size);
        if (!segment) {
            release_empty_segments();
            segment = source_.take_segment(size);
        }
    } catch (...) {
        if (charge_) charge_->give(size);
        throw;
    }
    if (!segment) {
        if (charge_) charge_->give(size);
        throw out_of_memory();
    }
    const auto address = static_cast<Address>(segment);
    segments_[address] = size;
    reserved_ += size;
    empty_ += size;
    free_[address] = {size, address};
    by_size_.insert({size, address});
}

void SegmentPool::free(void* pointer) noexcept {
    if (!pointer) return;
    const std::lock_guard lock(mutex_);
    const auto found = taken_.find(static_cast<Address>(pointer));
    if (found == taken_.end()) return;
    Address address = found->first;
    Block block = found->second;
    taken_.erase(found);
    used_ -= block.bytes;

    const auto after = free_.find(address + block.bytes);
    if (after != free_.end() && after->second.segment == block.segment) {
        block.bytes += after->second.bytes;
        by_size_.erase({after->second.bytes, after->first});
        free_.erase(after);
    }
    auto before = free_.lower_bound(address);
    if (before != free_.begin()) {
        --before;
        if (before->first + before->second.bytes == address &&
            before->second.segment == block.segment) {
            block.bytes += before->second.bytes;
            address = before->first;
            by_size_.erase({before->second.bytes, address});
        }
    }
    free_[address] = block;
    by_size_.insert({block.bytes, address});
    if (block.bytes == segments_.at(block.segment)) empty_ += block.bytes;
}

void SegmentPool::release_empty_segments(size_t keep) noexcept {
    for (auto segment = segments_.begin(); segment != segments_.end() && empty_ > keep;) {
        const auto [address, bytes] = *segment;
        const auto block = free_.find(address);
        if (block == free_.end() || block->second.bytes != bytes) {
            ++segment;
            continue;
        }
        by_size_.erase({bytes, address});
        free_.erase(block);
        source_.give_segment(address);
        if (charge_) charge_->give(bytes);
        reserved_ -= bytes;
        empty_ -= bytes;
        segment = segments_.erase(segment);
    }
}

void SegmentPool::trim(size_t keep) noexcept {
    const std::lock_guard lock(mutex_);
    release_empty_segments(keep);
}

DeviceMemoryUse SegmentPool::use() const noexcept {
    const std::lock_guard lock(mutex_);
    return {used_, reserved_, empty_, budget_};
}

size_t SegmentPool::available() const noexcept {
    const std::lock_guard lock(mutex_);
    const size_t left = budget_ - std::min(used_, budget_);
    return charge_ ? std::min(left, reserved_ - used_ + charge_->room(budget_)) : left;
}

}  // namespace pgwarp::gpu
