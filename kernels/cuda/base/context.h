// State that all users of one device share: attributes, interrupt flags, memory.
#pragma once

#include "kernels/cuda/base/memory.h"
#include "kernels/workers.h"

#include <csignal>
#include <string>

namespace pgwarp::gpu {

struct Context {
    explicit Context(const DeviceOptions& options);

    void use() const { use_device(device); }
    // Throws Interrupted if an interrupt is pending. Call it between two launches.
    void check_interrupt() const {
        if ((interrupt && *interrupt) || (other_interrupt && *other_interrupt)) throw Interrupted();
    }
    // Bytes of temporary memory that one operation may allocate.
    size_t scratch() const;

    int device;
    std::string name;
    uint32_t processors;
    size_t block_shared_bytes;  // most shared memory that a block can have
    size_t scratch_budget;
    const volatile std::sig_atomic_t* interrupt;
    const volatile std::sig_atomic_t* other_interrupt;
    mutable DeviceMemory memory;  // mutable: users of a const Context allocate
};

}  // namespace pgwarp::gpu
