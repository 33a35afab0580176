#include <algorithm>
#include <cstring>

#include "kernels/failing_device.h"
#include "kernels/stand_in_device.h"
#include "extension/device/library.h"
#include "extension/index/change_counts.h"
#include "extension/service/worker.h"
#include "extension/settings.h"

extern "C" {
#include "utils/timestamp.h"
}

namespace pgwarp {

namespace {

size_t memory_budget(size_t otherwise) {
    return settings.device_memory > 0 ? static_cast<size_t>(settings.device_memory) * 1024 * 1024
                                      : otherwise;
}

// The counts in shared memory.
class SharedCounts final : public ListChangeCounts {
  public:
    uint64_t of_index(const MirrorKey& key) const noexcept override {
        const uint64 count = changes_of(key).of_index();
        pg_read_barrier();
        return count;
    }
    uint32_t first_changed(const MirrorKey& key, std::span<const uint64_t> known,
                           uint32_t first) const noexcept override {
        const ListChanges changes = changes_of(key);
        while (first < known.size() &&
               (changes.of(first) == known[first] || known[first] == counted_elsewhere))
            ++first;
        return first;
    }

  private:
    static ListChanges changes_of(const MirrorKey& key) {
        return {key.database, key.tablespace, key.file};
    }
};

// pgwarp.debug_fault, if it is meant for this device.
int own_fault = static_cast<int>(Fault::none);

std::unique_ptr<Device> open_device(int number, OpenError* error) {
    const int sharers = sharers_of(number);
    if (number == host_device)
        return make_stand_in_device(1, memory_budget(host_memory / static_cast<size_t>(sharers)));
    DeviceOptions options;
    options.device = number;
    options.memory_budget = memory_budget(0);
    options.build_share = build_memory();
    options.sharers = sharers;
    options.near = true;
    return std::unique_ptr<Device>(open_cuda_device(options, error));
}

}  // namespace

int sharers_of(int number) {
    int numbers[most_devices];
    const int count = parse_devices(settings.devices, numbers);
    return std::max<int>(static_cast<int>(std::count(numbers, numbers + count, number)), 1);
}

int own_number() {
    int numbers[most_devices];
    const int count = parse_devices(settings.devices, numbers);
    const int place = device_number(own_device);
    return place < count ? numbers[place] : place;
}

void set_own_fault() {
    const bool meant =
        settings.fault_device < 0 || settings.fault_device == device_number(own_device);
    own_fault = meant ? settings.fault : static_cast<int>(Fault::none);
}

bool open_own_device(Worker* worker, OpenError* error) {
    std::unique_ptr<Device> device = open_device(own_number(), error);
    if (!device) {
        if (error->failure == OpenFailure::out_of_host_memory) throw std::bad_alloc();
        if (error->failure == OpenFailure::failed) {
            const std::string why = error->message;
            snprintf(error->message, sizeof(error->message), "device %d: %s", own_number(),
                     why.c_str());
        }
        return false;
    }
    const size_t budget = device->memory().budget;
    set_own_fault();
    worker->device = make_failing_device(std::move(device), &own_fault);
    // A quarter of the budget is left for models and for the scratch memory of searches.
    static const SharedCounts counts;
    worker->mirror = std::make_unique<Mirror>(*worker->device, budget - budget / 4,
                                              change_counts ? &counts : nullptr);
    return true;
}

void publish_device(const Worker* worker) {
    DeviceInfo& info = own_device->info;
    const DeviceMemoryUse memory = worker->device->memory();
    const DeviceLoad load = worker->mirror->load();
    info.number = own_number();
    strlcpy(info.name, worker->device->name(), sizeof(info.name));
    info.memory_budget = static_cast<int64>(memory.budget);
    info.memory_used = static_cast<int64>(memory.used);
    info.memory_reserved = static_cast<int64>(memory.reserved);
    info.assigned = static_cast<int64>(load.assigned);
    info.indexes = static_cast<int64>(load.indexes);
    info.list_budget = static_cast<int64>(load.budget);
}

bool return_empty_memory(Worker* worker) {
    constexpr int delay_ms = 3000;
    constexpr size_t max_kept = size_t{256} << 20;
    const DeviceMemoryUse use = worker->device->memory();
    const size_t kept = std::min(max_kept, use.budget / 16);
    if (use.empty <= kept) {
        worker->empty_since = 0;
        return false;
    }
    const TimestampTz now = GetCurrentTimestamp();
    if (worker->empty_since == 0) worker->empty_since = now;
    if (!TimestampDifferenceExceeds(worker->empty_since, now, delay_ms)) return true;
    char message[256];
    attempt(message, [&] { worker->device->trim(kept); });
    worker->empty_since = 0;
    publish_device(worker);
    return false;
}

}  // namespace pgwarp
