// Which devices to open, and which of them takes the next index.
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
    std::vector<std::string> failures;  // one message for each device that failed to open
};

// Opens the device of this number; returns null and sets `error` on failure.
using Opener = std::function<std::unique_ptr<Device>(int number, OpenError* error)>;

// Opens up to `most` of the devices with these numbers. A device that fails to open is recorded,
// and the others are still opened. Throws std::bad_alloc where the host has no memory: that is not
// the device's fault, and a later attempt may succeed.
OpenedDevices open_devices(std::span<const int> numbers, size_t most, const Opener& open);
// Like open_devices(), with the numbers from 0 until no such device exists.
OpenedDevices open_all_devices(size_t most, const Opener& open);

// What a device holds.
struct DeviceLoad {
    size_t assigned;  // bytes of its indexes with all of their lists resident
    size_t indexes;
    size_t budget;  // bytes
};

// Returns the device with the smallest share of its budget assigned; ties go to the one with the
// fewest indexes, then to the first. `loads` is not empty.
size_t least_loaded(std::span<const DeviceLoad> loads);

}  // namespace pgwarp
