// The devices to work on: which of them are opened, and which one takes in the next index.
#pragma once

#include "kernels/device.h"

#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace pgwarp {

struct OpenedDevice {
    int number;
    std::unique_ptr<Device> device;
};
struct OpenedDevices {
    std::vector<OpenedDevice> devices;
    std::vector<std::string> failures;  // why others were not opened, a message each
};

// The device of this number, or null with the reason.
using Opener = std::function<std::unique_ptr<Device>(int number, OpenError* error)>;

// Opens devices of these numbers, up to `most` of them. One that fails to open is noted, and the
// others are opened all the same. Throws std::bad_alloc where the host has no memory: that says
// nothing of a device, and a later attempt may succeed.
OpenedDevices open_devices(std::span<const int> numbers, size_t most, const Opener& open);
// The same with the numbers from 0 on, until there is no such device.
OpenedDevices open_all_devices(size_t most, const Opener& open);

// What a device has been given to keep.
struct DeviceLoad {
    size_t assigned;  // bytes of all indexes that it took in, were all their lists resident
    size_t indexes;
    size_t budget;  // bytes
};

// The device with the smallest share of its budget assigned; of equals the one with the fewest
// indexes, then the first. There is at least one.
size_t least_loaded(std::span<const DeviceLoad> loads);

}  // namespace pgwarp
