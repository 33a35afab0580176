// Devices that are not: the CPU in a device's place, and a device that fails when told to.
#pragma once

#include "kernels/device.h"

#include <memory>

namespace pgwarp {

// Keeps lists in this process's memory and searches them with so many threads. Its executors take
// copies of rows, as a device does, and poll the flags, as make_cpu_executor() says. What they take
// is charged to `charge`, where it is not null, with the budget as limit.
std::unique_ptr<Device> make_host_device(
    int threads, size_t memory_budget, const volatile std::sig_atomic_t* interrupt = nullptr,
    const volatile std::sig_atomic_t* other_interrupt = nullptr, MemoryCharge* charge = nullptr);

// What goes wrong in the searches of a failing device, and in the work of its executors.
enum class Fault : int {
    none,
    failed,          // every search fails
    lost,            // the device is lost
    out_of_memory,   // there is no room for a search, nor for a list
    unknown,         // something throws what nobody expects
    late,            // every search fails after it has written its results
    slow,            // a search takes a second, others may end before
    hung,            // a search never ends
    slow_put,        // taking in a list takes a second
    no_host_memory,  // the host has no memory for a search, nor for a list
    slow_large,      // a search for more than a thousand takes a second
};

// The device, with `fault` looked up at every search, put, and call of an executor, of which the
// first so many go well. A device that is lost makes no executor. For tests of whoever uses a
// device.
std::unique_ptr<Device> make_failing_device(std::unique_ptr<Device> device,
                                            const volatile int* fault, int good_calls = 0);

}  // namespace pgwarp
