// State that all users of one device share: attributes, interrupts, memory.
#pragma once

#include "kernels/cuda/base/memory.h"
#include "kernels/interrupts.h"

#include <string>

namespace pgwarp::gpu {

struct Context {
    explicit Context(const DeviceOptions& options);

    void use() const { use_device(device); }
    // Throws Interrupted if an interrupt is pending. Call it between two launches.
    void check_interrupt() const { interrupts.check(); }
    // Bytes of temporary memory that one operation may allocate.
    size_t scratch() const;

    int device;
    std::string name;
    uint32_t processors;
    size_t block_shared_bytes;  // most shared memory that a block can have
    size_t scratch_budget;
    Interrupts interrupts;
    mutable DeviceMemory memory;  // mutable: users of a const Context allocate
};

}  // namespace pgwarp::gpu
