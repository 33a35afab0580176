// State that all users of one device share: attributes, interrupts, memory.
#pragma once

#include "kernels/cuda/base/check.h"
#include "kernels/cuda/base/memory.h"
#include "kernels/interrupts.h"

#include <cstdint>

namespace pgwarp {

struct DeviceOptions;

namespace gpu {

struct Context {
    explicit Context(const DeviceOptions& options);

    void use() const { use_device(device); }
    // Throws Interrupted if an interrupt is pending. Call it between two launches.
    void check_interrupt() const { interrupts.check(); }
    // Bytes of temporary memory that one operation may allocate.
    size_t scratch() const;

    int device;
    char name[256];  // as cudaDeviceProp has it
    uint32_t processors;
    size_t block_shared_bytes;  // most shared memory that a block can have
    size_t scratch_budget;
    Interrupts interrupts;
    mutable DeviceMemory memory;  // mutable: users of a const Context allocate
};

}  // namespace gpu
}  // namespace pgwarp
