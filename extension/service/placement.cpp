#include <algorithm>
#include <span>

#include "kernels/device_choice.h"
#include "extension/service/placement.h"

extern "C" {
#include "utils/timestamp.h"
}

namespace pgwarp {

namespace {

// For this long an index waits for its device. A worker that has failed is back after a second or
// two, and one that hangs is ended by the watchdog.
constexpr int away_ms = 10 * 1000;

uint64 name_of(Oid database, Oid index) {
    return uint64{database} << 32 | index;
}

std::span<HeldIndex> ways_of(const ServiceDevice* device, uint64 name) {
    constexpr uint32 sets = most_held / held_ways;
    const uint64 hash = name * UINT64CONST(0x9e3779b97f4a7c15);
    const auto set = static_cast<uint32>(hash >> 32) % sets;
    return {const_cast<HeldIndex*>(device->held) + set * held_ways, held_ways};
}

HeldIndex* find(const ServiceDevice* device, uint64 name) {
    for (HeldIndex& held : ways_of(device, name))
        if (pg_atomic_read_u64(&held.name) == name) return &held;
    return nullptr;
}

void set_empty(HeldIndex* held) {
    pg_atomic_write_u32(&held->resident_lists, 0);
    pg_atomic_write_u32(&held->lists, 0);
    pg_atomic_write_u64(&held->bytes, 0);
    pg_atomic_write_u64(&held->batches, 0);
    pg_atomic_write_u64(&held->batch_queries, 0);
}

void set_free(HeldIndex* held) {
    pg_atomic_write_u64(&held->name, 0);
    set_empty(held);
}

// The place for an index that has none yet. Null: all are in use.
HeldIndex* take_place(const ServiceDevice* device, uint64 name) {
    HeldIndex* place = nullptr;
    for (HeldIndex& held : ways_of(device, name)) {
        if (pg_atomic_read_u64(&held.name) == 0) return &held;
        // Of an index that was here before the worker was restarted, and was perhaps dropped since.
        if (pg_atomic_read_u32(&held.lists) == 0) place = &held;
    }
    return place;
}

bool is_available(const ServiceDevice* device) {
    return worker_serves(device) && !is_suspect(device);
}

bool is_away_for_long(const ServiceDevice* device) {
    const TimestampTz since = worker_serves(device) ? device->suspected_at : device->since;
    return TimestampDifferenceExceeds(since, GetCurrentTimestamp(), away_ms);
}

// Of the devices that serve, the one with the most room. Null: none serves.
ServiceDevice* emptiest() {
    DeviceLoad loads[most_devices];
    ServiceDevice* devices[most_devices];
    size_t count = 0;
    for (int i = 0; i < service->devices; ++i) {
        ServiceDevice* device = service_device(i);
        if (!is_available(device)) continue;
        loads[count] = {static_cast<size_t>(device->info.assigned),
                        static_cast<size_t>(device->info.indexes),
                        static_cast<size_t>(device->info.list_budget)};
        devices[count++] = device;
    }
    return count > 0 ? devices[least_loaded({loads, count})] : nullptr;
}

// The one device that an index belongs to. Null: it is away, or there is none.
ServiceDevice* home_of(const MirrorKey& key) {
    ServiceDevice* home = nullptr;
    int64 most = -1;
    bool away = false;
    for (int i = 0; i < service->devices; ++i) {
        ServiceDevice* device = service_device(i);
        HeldIndex* held = find(device, name_of(key.database, key.index));
        if (!held) continue;
        if (!is_available(device)) {
            away |= !is_away_for_long(device);
            continue;
        }
        // A device that has an earlier build gets the new one.
        const int64 resident = pg_atomic_read_u64(&held->build) == key.build
                                   ? pg_atomic_read_u32(&held->resident_lists)
                                   : 0;
        if (resident <= most) continue;
        home = device;
        most = resident;
    }
    return home || away ? home : emptiest();
}

}  // namespace

Route route_search(const MirrorKey& key) {
    // One device takes all, silent or not: who asks has decided whether to wait for it.
    if (service->devices == 1) return {{service_device(0)}, 1};
    ServiceDevice* home = home_of(key);
    return {{home}, home ? 1 : 0};
}

Route route_load(const MirrorKey& key) {
    return route_search(key);
}

const HeldIndex* find_held(const ServiceDevice* device, Oid database, Oid index) {
    return find(device, name_of(database, index));
}

uint32 busy_searches(const ServiceDevice* device) {
    const uint32 waiting = *static_cast<volatile uint32*>(&search_ring(device)->count);
    return waiting + pg_atomic_read_u32(const_cast<pg_atomic_uint32*>(&device->in_flight));
}

void publish_held(ServiceDevice* device, const MirrorKey& key, const MirrorUse& use) {
    const uint64 name = name_of(key.database, key.index);
    HeldIndex* held = find(device, name);
    if (use.lists == 0) {
        if (held && pg_atomic_read_u64(&held->build) == key.build) set_free(held);
        return;
    }
    const bool is_new = !held;
    if (is_new) held = take_place(device, name);
    if (!held) return;
    if (is_new) set_free(held);
    pg_atomic_write_u64(&held->build, key.build);
    pg_atomic_write_u32(&held->lists, use.lists);
    pg_atomic_write_u32(&held->resident_lists, use.resident_lists);
    pg_atomic_write_u64(&held->bytes, use.bytes);
    pg_atomic_write_u64(&held->batches, use.batches);
    pg_atomic_write_u64(&held->batch_queries, use.batch_queries);
    if (!is_new) return;
    // Last: readers take no lock.
    pg_write_barrier();
    pg_atomic_write_u64(&held->name, name);
}

void forget_held(ServiceDevice* device, Oid database, Oid index) {
    if (index != InvalidOid) {
        if (HeldIndex* held = find(device, name_of(database, index))) set_free(held);
        return;
    }
    for (HeldIndex& held : device->held)
        if (pg_atomic_read_u64(&held.name) >> 32 == database) set_free(&held);
}

void empty_held(ServiceDevice* device) {
    for (HeldIndex& held : device->held) set_empty(&held);
}

void renew_held(ServiceDevice* device) {
    empty_held(device);
    if (!is_away_for_long(device)) return;
    for (HeldIndex& held : device->held) set_free(&held);
}

}  // namespace pgwarp
