// A device that fails on demand, for tests of code that uses a device.
#pragma once

#include "kernels/device.h"

#include <memory>

namespace pgwarp {

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
// neither, unless `good_calls` is positive.
std::unique_ptr<Device> make_failing_device(std::unique_ptr<Device> device,
                                            const volatile int* fault, int good_calls = 0);

}  // namespace pgwarp
