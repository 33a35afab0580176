// The device 'host': a stand-in for a GPU, made of the CPU.
#pragma once

#include "kernels/device.h"

#include <memory>

namespace pgwarp {

// Keeps lists in this process's memory and searches them with `threads` threads. Its executors copy
// rows, as a device does, and poll the interrupts as make_cpu_executor() says. Memory they take is
// charged to `charge`, where not null, with the budget as limit.
std::unique_ptr<Device> make_stand_in_device(int threads, size_t memory_budget,
                                             const Interrupts& interrupts = {},
                                             MemoryCharge* charge = nullptr);

}  // namespace pgwarp
