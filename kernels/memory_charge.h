// A memory limit that several processes share. Each process charges what it takes to one counter in
// shared memory, and takes no more than the limit leaves.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>

namespace pgwarp {

// Thread-safe.
class MemoryCharge {
  public:
    // `taken`: bytes that all processes hold.
    explicit MemoryCharge(uint64_t& taken) : taken_(taken) {}

    // Returns false and takes nothing where all processes together would exceed the limit.
    bool take(size_t bytes, size_t limit) noexcept {
        uint64_t before = taken_.load();
        do
            if (bytes > limit || before > limit - bytes) return false;
        while (!taken_.compare_exchange_weak(before, before + bytes));
        held_ += bytes;
        return true;
    }
    void give(size_t bytes) noexcept {
        uint64_t held = held_.load();
        uint64_t given;
        do given = std::min<uint64_t>(held, bytes);
        while (!held_.compare_exchange_weak(held, held - given));
        taken_ -= given;
    }
    // For the end of a process: returns whatever it still holds. A give() afterwards does nothing.
    void give_all() noexcept { taken_ -= held_.exchange(0); }

    size_t taken() const noexcept { return taken_.load(); }
    size_t room(size_t limit) const noexcept { return limit - std::min<size_t>(limit, taken()); }

  private:
    std::atomic_ref<uint64_t> taken_;
    std::atomic<uint64_t> held_{0};  // by this process
};
static_assert(std::atomic_ref<uint64_t>::is_always_lock_free, "it lies in shared memory");

}  // namespace pgwarp
