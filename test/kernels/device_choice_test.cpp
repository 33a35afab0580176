// Which devices are opened, and which one takes in the next index.

#include "kernels/device_choice.h"
#include "kernels/stand_in_device.h"

#include <gtest/gtest.h>

#include <cstring>
#include <set>

namespace pgwarp {
namespace {

// A machine with some devices, a part of which fail to open.
struct Machine {
    int devices;
    std::set<int> failing{};
    int out_of_host_memory_at = -1;
    std::vector<int> asked{};

    Opener opener() {
        return [this](int number, OpenError* error) -> std::unique_ptr<Device> {
            asked.push_back(number);
            error->failure = OpenFailure::failed;
            if (number >= devices) error->failure = OpenFailure::no_such_device;
            if (number == out_of_host_memory_at) error->failure = OpenFailure::out_of_host_memory;
            std::strcpy(error->message, number >= devices ? "no such device" : "in use");
            if (number >= devices || failing.count(number) || number == out_of_host_memory_at)
                return nullptr;
            return make_stand_in_device(1, 1 << 20);
        };
    }
};

std::vector<int> numbers_of(const OpenedDevices& opened) {
    std::vector<int> numbers;
    for (const OpenedDevice& device : opened.devices) numbers.push_back(device.number);
    return numbers;
}

TEST(DeviceChoice, GoesOnAfterADeviceThatFails) {
    Machine machine{4, {0, 2}};
    const OpenedDevices opened = open_all_devices(16, machine.opener());
    EXPECT_EQ(numbers_of(opened), (std::vector<int>{1, 3}));
    EXPECT_EQ(opened.failures, (std::vector<std::string>{"device 0: in use", "device 2: in use"}));
    EXPECT_EQ(machine.asked, (std::vector<int>{0, 1, 2, 3, 4}));

    // A build wants one.
    machine.asked.clear();
    EXPECT_EQ(numbers_of(open_all_devices(1, machine.opener())), (std::vector<int>{1}));
    EXPECT_EQ(machine.asked, (std::vector<int>{0, 1}));
}

TEST(DeviceChoice, SaysWhyThereIsNone) {
    Machine none{0};
    OpenedDevices opened = open_all_devices(16, none.opener());
    EXPECT_TRUE(opened.devices.empty());
    EXPECT_EQ(opened.failures, (std::vector<std::string>{"no such device"}));
    Machine failing{1, {0}};
    opened = open_all_devices(16, failing.opener());
    EXPECT_TRUE(opened.devices.empty());
    EXPECT_EQ(opened.failures, (std::vector<std::string>{"device 0: in use"}));
}

TEST(DeviceChoice, OpensThoseOfAListThatAreThere) {
    Machine machine{3, {1}};
    const int numbers[] = {7, 1, 2, 0};
    const OpenedDevices opened = open_devices(numbers, 16, machine.opener());
    EXPECT_EQ(numbers_of(opened), (std::vector<int>{2, 0}));
    EXPECT_EQ(opened.failures, (std::vector<std::string>{"no such device", "device 1: in use"}));
    EXPECT_EQ(numbers_of(open_devices(numbers, 1, machine.opener())), (std::vector<int>{2}));
}

TEST(DeviceChoice, BlamesNoDeviceForTheHostsMemory) {
    Machine machine{2};
    machine.out_of_host_memory_at = 1;
    EXPECT_THROW(open_all_devices(16, machine.opener()), std::bad_alloc);
    const int numbers[] = {1, 0};
    EXPECT_THROW(open_devices(numbers, 16, machine.opener()), std::bad_alloc);
}

TEST(DeviceChoice, TakesTheLeastLoaded) {
    EXPECT_EQ(least_loaded(std::vector<DeviceLoad>{{0, 0, 10}}), 0u);
    EXPECT_EQ(least_loaded(std::vector<DeviceLoad>{{5, 1, 10}, {4, 3, 10}, {6, 1, 10}}), 1u);
    // By its share of the budget.
    EXPECT_EQ(least_loaded(std::vector<DeviceLoad>{{5, 1, 10}, {8, 1, 100}}), 1u);
    // Of equals the one with fewer indexes, then the first.
    EXPECT_EQ(least_loaded(std::vector<DeviceLoad>{{0, 2, 10}, {0, 1, 10}, {0, 1, 10}}), 1u);
    EXPECT_EQ(least_loaded(std::vector<DeviceLoad>{{7, 1, 0}, {7, 1, 0}}), 0u);
}

}  // namespace
}  // namespace pgwarp
