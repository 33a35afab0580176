// The devices that a session opens for heavy work: builds, clusterings, joins, graphs. They open in
// a thread while the caller does other work, and may stay open for the session's next call.
#pragma once

#include <memory>
#include <thread>
#include <vector>

#include "kernels/device.h"
#include "extension/compat.h"

namespace pgwarp {

// What the opening thread makes of the devices.
enum class DeviceUse { executor, graph_builder };

// Members are destroyed in reverse order: executors and builders end before their device.
struct OpenDeviceOfSession {
    std::unique_ptr<Device> device;
    std::unique_ptr<Executor> executor;     // with DeviceUse::executor, until it is part of a group
    std::unique_ptr<GraphBuilder> builder;  // with DeviceUse::graph_builder, likewise
};

struct SessionDevice {
    DeviceUse use;
    int threads;  // of a host that stands in for a device
    bool wanted;  // false: there is no device, the CPU works
    int most;     // devices to open, if there are as many
    std::vector<OpenDeviceOfSession> devices;
    // What the caller made of all devices, or of the CPU:
    std::unique_ptr<Executor> executor;
    std::unique_ptr<GraphBuilder> builder;
    std::thread opening;
    char error[256];

    ~SessionDevice() { wait(); }
    void wait() {
        if (opening.joinable()) opening.join();
    }
};

// In multiplications: opening a device takes about as long as this much work takes on a CPU.
inline constexpr double min_work_for_a_device = 1e10;

// Whether pgwarp.build_executor sends this much work, in multiplications, to a device, should one
// exist.
bool wants_device(double work);
// Whether pgwarp.build_executor is gpu: the CPU must not do the work then.
bool must_use_device();
// Devices that this much work is dealt out to, if that many can be opened: all of pgwarp.devices
// where pgwarp.build_executor is gpu, else as many as it pays to open.
int devices_for(double work);

// Starts to open up to `most` devices of pgwarp.devices; 0: none is wanted. Their memory is charged
// to the build share. They end with the current memory context, or with close_session_device().
SessionDevice* begin_session_device(DeviceUse use, int most, int threads);
// Waits until the devices are open. False: none was wanted, or none could be opened; the latter is
// an error where pgwarp.build_executor is gpu.
bool has_opened(SessionDevice* session);
// Destroys executors and builders. Devices that did not fail stay open for the session's next
// call, unless other sessions already keep the maximum (keep_one_device()); else a thread closes
// them.
void close_session_device(SessionDevice* session, bool sound);

// Reports the failure as a WARNING: the CPU did the rest.
void warn_of_device(const char* failure);
// The same of one of several devices.
void warn_of_one_device(const char* failure);

}  // namespace pgwarp
