#include "kernels/device_choice.h"

#include <algorithm>
#include <new>
#include <utility>

namespace pgwarp {

namespace {

// False: there is no device of this number.
bool open_one(int number, const Opener& open, OpenedDevices* opened) {
    OpenError error;
    std::unique_ptr<Device> device = open(number, &error);
    if (device) {
        opened->devices.push_back({number, std::move(device)});
        return true;
    }
    if (error.failure == OpenFailure::out_of_host_memory) throw std::bad_alloc();
    const bool there = error.failure != OpenFailure::no_such_device;
    opened->failures.push_back((there ? "device " + std::to_string(number) + ": " : "") +
                               error.message);
    return there;
}

}  // namespace

OpenedDevices open_devices(std::span<const int> numbers, size_t most, const Opener& open) {
    OpenedDevices opened;
    for (size_t i = 0; i < numbers.size() && opened.devices.size() < most; ++i)
        open_one(numbers[i], open, &opened);
    return opened;
}

OpenedDevices open_all_devices(size_t most, const Opener& open) {
    OpenedDevices opened;
    int number = 0;
    while (opened.devices.size() < most && open_one(number, open, &opened)) ++number;
    // Report that a device does not exist only where there is none at all.
    const bool ended = opened.devices.size() < most;
    if (ended && number > 0) opened.failures.pop_back();
    return opened;
}

size_t least_loaded(std::span<const DeviceLoad> loads) {
    const auto share = [](const DeviceLoad& load) {
        return static_cast<double>(load.assigned) /
               static_cast<double>(std::max<size_t>(load.budget, 1));
    };
    const auto least =
        std::min_element(loads.begin(), loads.end(), [&](const DeviceLoad& a, const DeviceLoad& b) {
            return std::pair(share(a), a.indexes) < std::pair(share(b), b.indexes);
        });
    return static_cast<size_t>(least - loads.begin());
}

}  // namespace pgwarp
