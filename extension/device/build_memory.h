// The share of a device's memory that the work of sessions may use: builds, clusterings, joins,
// graphs. All sessions share it if the library is preloaded; otherwise each session has its own.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/device.h"
#include "kernels/memory_charge.h"
#include "extension/settings.h"

namespace pgwarp {

// In shared memory; changed by atomic operations only.
struct BuildShare {
    uint64_t taken[most_devices];  // bytes of device memory, by the place in pgwarp.devices
    uint64_t kept_devices;         // devices that sessions keep open between calls
};

// The share of all sessions, in the service's shared memory; null where the library was not
// preloaded.
extern BuildShare* common_build_share;

// The counter that memory of the device at this place of pgwarp.devices is charged to. The
// backend's main thread must make the first call: it registers the exit callback that gives back
// what the backend still holds.
MemoryCharge* build_charge(int place);

// pgwarp.build_memory in bytes; 0: the device's default.
size_t build_memory();
// Memory of a host that stands in for a device: for the service, and as much for builds.
inline constexpr size_t host_memory = size_t{1} << 30;
// build_memory() where the host stands in for a device; never 0.
size_t host_build_memory();

// Counts one more session that keeps its devices, of which this is one. False: sessions already
// keep the maximum. The driver takes about half a gigabyte for each, which no budget counts;
// together kept devices may take a quarter of the share, but one is always allowed.
bool keep_one_device(const Device& device);
void keep_one_device_less();

// A hint on raising the limit, where `failure` says that device memory ran out; else null.
const char* build_memory_hint(const char* failure);

}  // namespace pgwarp
