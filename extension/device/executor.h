// The executor of builds and other heavy work: this process's CPU, or the session's devices.
#pragma once

#include <type_traits>

#include "kernels/executor.h"
#include "extension/compat.h"
#include "extension/device/session_device.h"
#include "extension/settings.h"

namespace pgwarp {

struct BuildExecutor {
    Executor* executor;
    // True: a device, or several, which one process feeds with large blocks of rows. False: every
    // process of the build has its own CPU executor.
    bool device;
    SessionDevice* session;
    // The executors of the devices, where the CPU, or another device, takes over from a failed one;
    // else there are none.
    class FallbackExecutor* fallbacks[most_devices];
    int fallback_count;
    int threads;
};

// Chooses by pgwarp.build_executor. `unfit`, where not null, says why no device can do this work.
// `work` is the approximate number of multiplications: for little work, opening a device does not
// pay. `threads` is for the CPU. The executor ends with the current memory context, or with
// close_build_executor().
BuildExecutor open_build_executor(const char* unfit, double work, int threads);
// The same in two steps: the device opens, which takes a while, while the caller does other work.
BuildExecutor begin_build_executor(const char* unfit, double work, int threads);
void finish_build_executor(BuildExecutor* executor);
// Warns if a device failed during the work.
void close_build_executor(BuildExecutor* executor);

// A device, or several, for work with a CPU path of its own. Null where there is no device; that is
// an error where pgwarp.build_executor is gpu. Where the device fails, the caller takes its CPU
// path. Closed as above.
struct DeviceWork {
    Executor* executor;  // null: not open yet
    SessionDevice* session;
    bool failed;
    bool others;        // one failed, and others did its work
    char failure[256];  // of the last that failed
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
// After a failure: true where other devices are left, and the caller can start the work again with
// those. Objects made by the executor must have been destroyed.
bool can_go_on(DeviceWork* device);
void close_device_work(DeviceWork* device);

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
