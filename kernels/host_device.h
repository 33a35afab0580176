// Devices that are not: the CPU in a device's place, and a device that fails when told to.
#pragma once

#include "kernels/device.h"

#include <memory>

namespace pgwarp {

// Keeps lists in this process's memory and searches them with so many threads.
std::unique_ptr<Device> make_host_device(int threads, size_t memory_budget);

// What goes wrong in the searches of a failing device.
enum class Fault : int {
    none,
    failed,         // every search fails
    lost,           // the device is lost
    out_of_memory,  // there is no room for a search, nor for a list
    unknown,        // something throws what nobody expects
    slow,           // a search takes a second
    hung,           // a search never ends
};

// The device, with `fault` looked up at every search and put. For tests of whoever uses a device.
std::unique_ptr<Device> make_failing_device(std::unique_ptr<Device> device,
                                            const volatile int* fault);

}  // namespace pgwarp
