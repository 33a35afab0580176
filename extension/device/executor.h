// Who does the arithmetic of builds and of other heavy work: this process's CPU, or a device that
// it opens for the time.
#pragma once

#include <memory>
#include <type_traits>

#include "kernels/device.h"
#include "kernels/executor.h"
#include "extension/compat.h"

namespace pgwarp {

struct BuildExecutor {
    Executor* executor;
    // A device: rows are handed to it in large blocks, by one process. Else every process that
    // takes part in the build has an executor of its own.
    bool device;
    struct BuildDevice* owned;
    int threads;
};

// The device of pgwarp.devices, or null with the reason; its memory is charged to the share of
// builds. build_charge() was called before. Throws, and reports nothing; signals are blocked
// meanwhile, for the driver's threads must not take this process's.
std::unique_ptr<Device> open_device(int threads, char* error, size_t error_size);
// What a user hears of it.
void warn_of_device(const char* failure);

// By pgwarp.build_executor: whether so much work, in multiplications, is for a device, if there is
// one.
bool wants_device(double work);

// By pgwarp.build_executor. `unfit`, where not null, says why no device can do it. `work` is about
// how many multiplications it takes: little work does not wait for a device. `threads` is for the
// CPU. What it opens ends with the current memory context, or with close_build_executor().
BuildExecutor open_build_executor(const char* unfit, double work, int threads);
// The same in two steps: a device starts, which takes a while, while the caller does other things.
BuildExecutor begin_build_executor(const char* unfit, double work, int threads);
void finish_build_executor(BuildExecutor* executor);
// Warns where a device failed on the way. One that did not is kept for the session's next call
// where pgwarp.keep_device says so, and sessions do not keep too many.
void close_build_executor(BuildExecutor* executor);

// A device for work that has a way of its own where there is none, or where it fails: null then,
// but for an error where pgwarp.build_executor is gpu. Closed as above.
struct DeviceWork {
    Executor* executor;  // null: it is not open yet
    BuildExecutor build;
    bool failed;
    char failure[256];
};
DeviceWork* open_device_work(double work, int threads);
// The same, but it opens while the caller does something else. Null: none is wanted.
DeviceWork* begin_device_work(double work, int threads);
// Waits for it. False: there is none.
bool is_open(DeviceWork* device);
// Runs this on it, interruptibly. False: the device has failed, or has no room. Objects of its
// executor end before close_device_work(), which then warns.
bool run_on_device(DeviceWork* device, void (*work)(void* state, Executor& executor), void* state);
void close_device_work(DeviceWork* device);
// What its objects may take of it together.
Size device_memory_of(const DeviceWork* device);
// Whether pgwarp.build_executor is gpu: there is no other way then, and closing reports the error.
bool must_use_device();

// For lambdas that capture by reference.
template <typename Function>
bool run_on_device(DeviceWork* device, Function&& function) {
    return run_on_device(
        device,
        [](void* state, Executor& executor) {
            (*static_cast<std::remove_reference_t<Function>*>(state))(executor);
        },
        &function);
}

}  // namespace pgwarp
