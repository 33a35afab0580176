// Stand-ins for a device: the CPU behind the Device interface, and a device that fails on demand.
#pragma once

#include "kernels/device.h"

#include <memory>

namespace pgwarp {

// Keeps lists in this process's memory and searches them with `threads` threads. Its executors copy
// rows, as a device does, and poll the flags as make_cpu_executor() says. Memory they take is
// charged to `charge`, where not null, with the budget as limit.
std::unique_ptr<Device> make_host_device(
    int threads, size_t memory_budget, const volatile std::sig_atomic_t* interrupt = nullptr,
    const volatile std::sig_atomic_t* other_interrupt = nullptr, MemoryCharge* charge = nullptr);

// Faults of a failing device, in its searches and in its executors' work.
enum class Fault : int {
    none,
    failed,          // every search fails
    lost,            // the device is lost
    out_of_memory,   // no device memory for a search or a list
    unknown,         // an exception of an unexpected type
    late,            // every search fails after it has written its results
    slow,            // a search takes a second; others may end before it
    hung,            // a search never ends
    slow_put,        // put() of a list takes a second
    no_host_memory,  // no host memory for a search or a list
    slow_large,      // a search with k above a thousand takes a second
};

// Wraps a device. Every search, every put, and every call of an executor or a graph builder reads
// `fault`; the first `good_calls` calls of each executor and builder succeed. A lost device makes
// neither, unless `good_calls` is positive. For tests of code that uses a device.
std::unique_ptr<Device> make_failing_device(std::unique_ptr<Device> device,
                                            const volatile int* fault, int good_calls = 0);

}  // namespace pgwarp
