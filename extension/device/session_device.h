// A device that a session opens for heavy work: builds, clusterings, joins, graphs. It opens in a
// thread while the caller does other work, and may stay open for the session's next call.
#pragma once

#include <memory>
#include <thread>

#include "kernels/device.h"
#include "extension/compat.h"

namespace pgwarp {

// What the opening thread makes of the device.
enum class DeviceUse { executor, graph_builder };

// Members are destroyed in reverse order: executor and builder end before their device.
struct SessionDevice {
    DeviceUse use;
    int threads;  // of a host that stands in for a device
    bool wanted;  // false: there is no device, the CPU works
    std::unique_ptr<Device> device;
    std::unique_ptr<Executor> executor;     // with DeviceUse::executor
    std::unique_ptr<GraphBuilder> builder;  // with DeviceUse::graph_builder
    std::thread opening;
    char error[256];

    ~SessionDevice() { wait(); }
    void wait() {
        if (opening.joinable()) opening.join();
    }
};

// Whether pgwarp.build_executor sends this much work, in multiplications, to a device, should one
// exist.
bool wants_device(double work);
// Whether pgwarp.build_executor is gpu: the CPU must not do the work then.
bool must_use_device();

// Starts to open a device of pgwarp.devices, if one is wanted. Its memory is charged to the build
// share. It ends with the current memory context, or with close_session_device().
SessionDevice* begin_session_device(DeviceUse use, bool wanted, int threads);
// Waits until the device is open. False: none was wanted, or none could be opened; the latter is an
// error where pgwarp.build_executor is gpu.
bool has_opened(SessionDevice* session);
// Destroys the executor or builder. A device that did not fail stays open for the session's next
// call, if pgwarp.keep_device is on and sessions do not already keep the maximum; else a thread
// closes it.
void close_session_device(SessionDevice* session, bool sound);

// Reports the failure as a WARNING: the CPU did the rest.
void warn_of_device(const char* failure);

}  // namespace pgwarp
