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
        while (first < known.size() && changes.of(first) == known[first]) ++first;
        return first;
    }

  private:
    static ListChanges changes_of(const MirrorKey& key) {
        return {key.database, key.tablespace, key.file};
    }
};

void add_place(Worker* worker, int number, std::unique_ptr<Device> device) {
    const size_t budget = device->memory().budget;
    device = make_failing_device(std::move(device), &settings.fault);
    // A quarter of the budget is left for models and for the scratch memory of searches.
    static const SharedCounts counts;
    auto mirror =
        std::make_unique<Mirror>(*device, budget - budget / 4, change_counts ? &counts : nullptr);
    worker->places.push_back({number, std::move(device), std::move(mirror), 0});
}

std::unique_ptr<Device> open_place(int number, OpenError* error) {
    constexpr size_t host_budget = size_t{1} << 30;
    if (number == host_device)
        return make_stand_in_device(settings.host_threads, memory_budget(host_budget));
    DeviceOptions options;
    options.device = number;
    options.memory_budget = memory_budget(0);
    options.build_share = build_memory();
    return std::unique_ptr<Device>(open_cuda_device(options, error));
}

}  // namespace

void open_places(Worker* worker) {
    int numbers[most_devices];
    const int count = parse_devices(settings.devices, numbers);
    OpenedDevices opened =
        count > 0 ? open_devices({numbers, static_cast<size_t>(count)}, most_devices, open_place)
                  : open_all_devices(most_devices, open_place);
    for (OpenedDevice& device : opened.devices)
        add_place(worker, device.number, std::move(device.device));
    worker->not_opened = std::move(opened.failures);
}

void publish_devices(const Worker* worker) {
    int count = 0;
    for (const Place& place : worker->places) {
        DeviceInfo& info = service->device[count++];
        const DeviceMemoryUse memory = place.device->memory();
        info.number = place.number;
        strlcpy(info.name, place.device->name(), sizeof(info.name));
        info.memory_budget = static_cast<int64>(memory.budget);
        info.memory_used = static_cast<int64>(memory.used);
        info.memory_reserved = static_cast<int64>(memory.reserved);
    }
    service->devices = count;
}

bool give_back_empty(Worker* worker) {
    constexpr int patience_ms = 3000;
    constexpr size_t max_kept = size_t{256} << 20;
    bool later = false;
    for (Place& place : worker->places) {
        const DeviceMemoryUse use = place.device->memory();
        const size_t kept = std::min(max_kept, use.budget / 16);
        if (use.empty <= kept) {
            place.empty_since = 0;
            continue;
        }
        const TimestampTz now = GetCurrentTimestamp();
        if (place.empty_since == 0) place.empty_since = now;
        if (!TimestampDifferenceExceeds(place.empty_since, now, patience_ms)) {
            later = true;
            continue;
        }
        char message[256];
        attempt(message, [&] { place.device->trim(kept); });
        place.empty_since = 0;
        publish_devices(worker);
    }
    return later;
}

}  // namespace pgwarp
