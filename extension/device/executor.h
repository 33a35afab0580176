// The executor of builds and other heavy work: this process's CPU, or a device that it opens for
// the duration of the work.
#pragma once

#include <memory>
#include <type_traits>

#include "kernels/device.h"
#include "kernels/executor.h"
#include "extension/compat.h"

namespace pgwarp {

struct BuildExecutor {
    Executor* executor;
    // True: a device, which one process feeds with large blocks of rows. False: every process of
    // the build has its own CPU executor.
    bool device;
    struct BuildDevice* owned;
    int threads;
};

// Opens a device of pgwarp.devices; null, with the reason in `error`, where that fails. Its memory
// is charged to the build share: the backend has called build_charge() before. May throw; reports
// no PostgreSQL error. The caller blocks all signals: the driver's threads inherit the mask and
// must not receive this process's signals.
std::unique_ptr<Device> open_device(int threads, char* error, size_t error_size);
// Reports the failure as a WARNING: the CPU did the rest.
void warn_of_device(const char* failure);

// Whether pgwarp.build_executor sends this much work, in multiplications, to a device, should one
// exist.
bool wants_device(double work);

// Chooses by pgwarp.build_executor. `unfit`, where not null, says why no device can do this work.
// `work` is the approximate number of multiplications: for little work, opening a device does not
// pay. `threads` is for the CPU. The executor ends with the current memory context, or with
// close_build_executor().
BuildExecutor open_build_executor(const char* unfit, double work, int threads);
// The same in two steps: the device opens, which takes a while, while the caller does other work.
BuildExecutor begin_build_executor(const char* unfit, double work, int threads);
void finish_build_executor(BuildExecutor* executor);
// Warns if the device failed during the work. A device that did not fail stays open for the
// session's next call, if pgwarp.keep_device is on and sessions do not already keep the maximum.
void close_build_executor(BuildExecutor* executor);

// A device for work with a CPU path of its own. Null where there is no device; that is an error
// where pgwarp.build_executor is gpu. Where the device fails, the caller takes its CPU path. Closed
// as above.
struct DeviceWork {
    Executor* executor;  // null: not open yet
    BuildExecutor build;
    bool failed;
    char failure[256];
};
DeviceWork* open_device_work(double work, int threads);
// The same, but the device opens while the caller does other work. Null: no device is wanted.
DeviceWork* begin_device_work(double work, int threads);
// Waits until the device is open. False: there is none.
bool is_open(DeviceWork* device);
// Runs `work` on the device, interruptibly. False: the device failed or ran out of memory. Objects
// made by its executor must be destroyed before close_device_work(), which reports the failure: a
// WARNING, or an error where pgwarp.build_executor is gpu.
bool run_on_device(DeviceWork* device, void (*work)(void* state, Executor& executor), void* state);
void close_device_work(DeviceWork* device);
// Bytes that all objects on the device may take together.
Size device_memory_of(const DeviceWork* device);
// Whether pgwarp.build_executor is gpu: the CPU path is not allowed then, and closing a failed
// device is an error.
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
