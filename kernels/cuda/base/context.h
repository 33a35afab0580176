// What everything on one device shares.
#pragma once

#include "kernels/cuda/base/memory.h"
#include "kernels/workers.h"

#include <csignal>
#include <string>

namespace pgwarp::gpu {

struct Context {
    explicit Context(const DeviceOptions& options);

    void use() const { use_device(device); }
    // Between two pieces of work.
    void check_interrupt() const {
        if ((interrupt && *interrupt) || (other_interrupt && *other_interrupt)) throw Interrupted();
    }
    // Bytes that the caller may use for the time of one operation.
    size_t scratch() const;

    int device;
    std::string name;
    uint32_t processors;
    size_t block_shared_bytes;  // the most that one block can have
    size_t scratch_budget;
    const volatile std::sig_atomic_t* interrupt;
    const volatile std::sig_atomic_t* other_interrupt;
    mutable DeviceMemory memory;  // an allocation does not change the device
};

}  // namespace pgwarp::gpu
