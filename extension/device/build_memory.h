// The share of a device's memory that work of sessions may take: builds, clusterings, joins,
// graphs. With the library preloaded it is one share for all sessions; else each session has it for
// itself.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/device.h"
#include "kernels/memory_charge.h"

namespace pgwarp {

// In shared memory; changed by atomic operations only.
struct BuildShare {
    uint64_t taken;         // bytes of device memory
    uint64_t kept_devices;  // that sessions keep open
};

// Of all sessions; null where the library was not preloaded. The service's shared memory has it.
extern BuildShare* common_build_share;

// What a device for such work is charged to. To be called first by the backend's own thread: what
// the backend holds is given back when it exits.
MemoryCharge* build_charge();

// By pgwarp.build_memory; 0: the device's default.
size_t build_memory();
// The same where the host stands in a device's place.
size_t host_build_memory();

// Counts one more device that is kept. False: sessions keep as many as they may. The driver takes
// about half a gigabyte for each, which no budget counts; all of them shall take no more than a
// quarter of the share, or there is one.
bool keep_one_device(const Device& device);
void keep_one_device_less();

// How to have more of it, where this failure was for lack of memory; else null.
const char* build_memory_hint(const char* failure);

}  // namespace pgwarp
