#include <algorithm>
#include <atomic>
#include <cstring>
#include <memory>

#include "extension/device/build_memory.h"
#include "extension/compat.h"
#include "extension/settings.h"

extern "C" {
#include "storage/ipc.h"
}

namespace pgwarp {

BuildShare* common_build_share = nullptr;

namespace {

BuildShare* shared() {
    static BuildShare own = {};
    return common_build_share ? common_build_share : &own;
}

uint64_t kept_here = 0;

void give_all(int, Datum) {
    for (int place = 0; place < most_devices; ++place) build_charge(place)->give_all();
    while (kept_here > 0) keep_one_device_less();
}

}  // namespace

MemoryCharge* build_charge(int place) {
    static const std::unique_ptr<MemoryCharge>* charges = [] {
        auto* all = new std::unique_ptr<MemoryCharge>[most_devices];
        for (int i = 0; i < most_devices; ++i)
            all[i] = std::make_unique<MemoryCharge>(shared()->taken[i]);
        return all;
    }();
    // on_shmem_exit callbacks run after transaction abort, which has closed the devices by then.
    static const bool registered = (on_shmem_exit(give_all, Datum{0}), true);
    static_cast<void>(registered);
    return charges[place].get();
}

size_t build_memory() {
    return static_cast<size_t>(settings.build_memory) << 20;
}

size_t host_build_memory() {
    return settings.build_memory > 0 ? build_memory() : host_memory;
}

bool keep_one_device(const Device& device) {
    constexpr size_t of_the_driver = size_t{512} << 20;
    const uint64_t most = std::max<uint64_t>(device.memory().budget / 4 / of_the_driver, 1);
    const std::atomic_ref<uint64_t> kept(shared()->kept_devices);
    if (kept.fetch_add(1) >= most) {
        kept.fetch_sub(1);
        return false;
    }
    ++kept_here;
    return true;
}

void keep_one_device_less() {
    std::atomic_ref<uint64_t>(shared()->kept_devices).fetch_sub(1);
    --kept_here;
}

const char* build_memory_hint(const char* failure) {
    constexpr char lack[] = "out of device memory";
    return strncmp(failure, lack, sizeof(lack) - 1) == 0
               ? "Sessions share pgwarp.build_memory, which a superuser can raise."
               : nullptr;
}

}  // namespace pgwarp
