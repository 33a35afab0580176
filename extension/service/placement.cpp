#include <algorithm>
#include <span>

#include "kernels/device_choice.h"
#include "extension/service/rate_limit.h"
#include "extension/service/deadline.h"
#include "extension/service/placement.h"
#include "extension/service/shards.h"
#include "extension/settings.h"

extern "C" {
#include "miscadmin.h"
#include "storage/proc.h"
#include "utils/timestamp.h"
}

namespace pgwarp {

namespace {

// An index with 'auto' gets another copy when each copy has this many searches to do, and if it
// takes no more than this part of a device.
constexpr uint32 much_searched = 4;
constexpr int64 small_part = 4;

uint64 name_of(Oid database, Oid index) {
    return uint64{database} << 32 | index;
}

// The build as it is published. OIDs of databases are reused, so it tells their incarnations apart.
uint64 build_of(const MirrorKey& key) {
    return key.build ^ key.incarnation * UINT64CONST(0x9e3779b97f4a7c15);
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
    pg_atomic_write_u32(&held->foreign_lists, 0);
    pg_atomic_write_u32(&held->lists, 0);
    pg_atomic_write_u64(&held->bytes, 0);
    pg_atomic_write_u64(&held->batches, 0);
    pg_atomic_write_u64(&held->batch_queries, 0);
    pg_atomic_write_u64(&held->refused, 0);
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
        // Left by an earlier worker; the index may have been dropped since.
        if (pg_atomic_read_u32(&held.lists) == 0) place = &held;
    }
    return place;
}

// A device and what it has of an index.
struct Copy {
    ServiceDevice* device;
    HeldIndex* held;  // null: nothing
    uint32 resident;  // lists of the build that is asked for
    uint32 busy;
};

struct Copies {
    Copy items[most_devices];
    int count;
    uint32 most_resident;
    // A device has the index that does not serve now, and may soon.
    bool away;
};

// What the devices that serve have of an index; devices that have nothing of it only if `all`.
// `among`: these devices, a bit each.
Copies find_copies(const MirrorKey& key, bool all, uint32 among = PG_UINT32_MAX) {
    Copies copies = {};
    for (int i = 0; i < service->devices; ++i) {
        if ((among >> i & 1) == 0) continue;
        ServiceDevice* device = service_device(i);
        HeldIndex* held = find(device, name_of(key.database, key.index));
        if (!is_available(device)) {
            copies.away |= held && !is_away_for_long(device);
            continue;
        }
        if (waited_in_vain_for(device)) {
            copies.away |= held != nullptr;
            continue;
        }
        if (!held && !all) continue;
        // A device with an earlier build of the index gets the new one.
        const bool current = held && pg_atomic_read_u64(&held->build) == build_of(key);
        const uint32 resident = current ? pg_atomic_read_u32(&held->resident_lists) : 0;
        copies.most_resident = std::max(copies.most_resident, resident);
        copies.items[copies.count++] = {device, held, resident, busy_searches(device)};
    }
    return copies;
}

// Whether the device has lists of this build of an index.
bool has_lists(const ServiceDevice* device, const MirrorKey& key) {
    HeldIndex* held = find(device, name_of(key.database, key.index));
    return held && pg_atomic_read_u64(&held->build) == build_of(key) &&
           pg_atomic_read_u32(&held->resident_lists) > 0;
}

// Bytes of its indexes with all lists that belong there.
int64 assigned_to(const ServiceDevice* device) {
    return std::max<int64>(device->info.assigned - bytes_elsewhere(device, has_lists), 0);
}

// Of the devices that serve, the one with the most room that is not among the holders. Null: none.
ServiceDevice* emptiest(const Copies& holders) {
    DeviceLoad loads[most_devices];
    ServiceDevice* devices[most_devices];
    size_t count = 0;
    for (int i = 0; i < service->devices; ++i) {
        ServiceDevice* device = service_device(i);
        const bool has = std::any_of(holders.items, holders.items + holders.count,
                                     [device](const Copy& copy) { return copy.device == device; });
        if (has || !is_available(device) || waited_in_vain_for(device)) continue;
        loads[count] = {static_cast<size_t>(assigned_to(device)),
                        static_cast<size_t>(device->info.indexes),
                        static_cast<size_t>(device->info.list_budget)};
        devices[count++] = device;
    }
    return count > 0 ? devices[least_loaded({loads, count})] : nullptr;
}

// The one device that an index belongs to. Null: that device does not serve, or there is none.
ServiceDevice* home_of(const Copies& holders) {
    for (int i = 0; i < holders.count; ++i)
        if (holders.items[i].resident == holders.most_resident) return holders.items[i].device;
    return holders.away ? nullptr : emptiest(holders);
}

// Copies left from another placement are dropped once the copy that stays has all lists. A worker
// that is slow to do so must not be told with every search: its queue would fill up.
void drop_others(const MirrorKey& key, const Copies& holders, const ServiceDevice* home) {
    bool whole = false;
    for (int i = 0; i < holders.count; ++i) {
        const Copy& copy = holders.items[i];
        whole |= copy.device == home && copy.resident > 0 &&
                 copy.resident == pg_atomic_read_u32(&copy.held->lists);
    }
    for (int i = 0; whole && i < holders.count; ++i) {
        ServiceDevice* device = holders.items[i].device;
        if (device != home && may_send(device, key, any_list, leftover_copy))
            post_forget_to(device, key.database, key.index);
    }
}

Route route_single(const MirrorKey& key) {
    const Copies holders = find_copies(key, false);
    ServiceDevice* home = home_of(holders);
    if (holders.count > 1) drop_others(key, holders, home);
    return {{home}, home ? 1 : 0, 0, 0, 0};
}

bool is_whole_enough(const Copies& copies, const Copy& copy) {
    return copy.resident > 0 && uint64{copy.resident} * 10 >= uint64{copies.most_resident} * 9;
}

// Adds the devices whose copies are whole enough, or those whose are not, the least busy first.
void add_copies(const Copies& copies, bool whole, Route* route) {
    const Copy* chosen[most_devices];
    int count = 0;
    // Of equally busy devices, sessions prefer different ones.
    const int first = compat_my_proc_number() % copies.count;
    for (int i = 0; i < copies.count; ++i) {
        const Copy& copy = copies.items[(first + i) % copies.count];
        if (is_whole_enough(copies, copy) != whole) continue;
        // Where no device has anything, any may be asked.
        if (!whole && copy.resident == 0 && copies.most_resident > 0) continue;
        int at = count++;
        for (; at > 0 && chosen[at - 1]->busy > copy.busy; --at) chosen[at] = chosen[at - 1];
        chosen[at] = &copy;
    }
    for (int i = 0; i < count; ++i) route->devices[route->count++] = chosen[i]->device;
}

// `lists`: those that belong to each copy; 0: all of the index.
Route route_copies(const Copies& copies, uint32 lists) {
    Route route = {};
    if (copies.count == 0) return route;
    add_copies(copies, true, &route);
    add_copies(copies, false, &route);
    for (int i = 0; lists == 0 && i < copies.count; ++i)
        if (const Copy& copy = copies.items[i]; copy.resident == copies.most_resident && copy.held)
            lists = pg_atomic_read_u32(&copy.held->lists);
    for (int i = 0; i < copies.count; ++i) {
        const Copy& copy = copies.items[i];
        const uint32 bit = uint32{1} << device_number(copy.device);
        const uint32 foreign = copy.held ? pg_atomic_read_u32(&copy.held->foreign_lists) : 0;
        if (copy.resident < lists + foreign) route.lacking |= bit;
        if (foreign > 0) route.foreign |= bit;
    }
    return route;
}

// A device for one more copy of an index that is small and much searched. Null: none.
ServiceDevice* place_for_another(const Copies& holders) {
    int64 bytes = 0;
    for (int i = 0; i < holders.count; ++i) {
        const Copy& copy = holders.items[i];
        if (copy.busy < much_searched) return nullptr;
        if (copy.resident == 0 || copy.resident < holders.most_resident) continue;
        bytes = static_cast<int64>(pg_atomic_read_u64(&copy.held->bytes) *
                                   pg_atomic_read_u32(&copy.held->lists) / copy.resident);
    }
    ServiceDevice* device = emptiest(holders);
    if (bytes == 0 || !device) return nullptr;
    const DeviceInfo& info = device->info;
    return bytes <= info.list_budget / small_part && assigned_to(device) + bytes <= info.list_budget
               ? device
               : nullptr;
}

Route route_automatically(const MirrorKey& key) {
    Copies holders = find_copies(key, false);
    if (holders.count == 0) {
        ServiceDevice* home = home_of(holders);
        return {{home}, home ? 1 : 0, 0, 0, 0};
    }
    if (ServiceDevice* another = place_for_another(holders))
        holders.items[holders.count++] = {another, nullptr, 0, busy_searches(another)};
    return route_copies(holders, 0);
}

}  // namespace

// Moves one of these devices to the front, if the route has one.
static void prefer(uint32 devices, Route* route) {
    for (int i = 1; i < route->count; ++i) {
        if ((devices >> device_number(route->devices[i]) & 1) == 0) continue;
        std::swap(route->devices[0], route->devices[i]);
        return;
    }
}

Route route_owners(const MirrorKey& key, uint32 owners, uint32 lists, uint32 first) {
    const Copies copies = find_copies(key, true, owners);
    Route route = route_copies(copies, lists);
    if (route.count > 0 && (first >> device_number(route.devices[0]) & 1) == 0)
        prefer(first, &route);
    for (int i = 0; i < copies.count; ++i)
        if (const Copy& copy = copies.items[i]; copy.device == route.devices[0] && copy.held)
            route.bytes = pg_atomic_read_u64(&copy.held->bytes);
    return route;
}

Route route_search(const MirrorKey& key, Placement placement, const ServiceDevice* first) {
    // One device takes all, silent or not: the caller has decided whether to wait for it.
    if (service->devices == 1) return {{service_device(0)}, 1, 0, 0, 0};
    Route route = placement == Placement::single      ? route_single(key)
                  : placement == Placement::replicate ? route_copies(find_copies(key, true), 0)
                                                      : route_automatically(key);
    if (first) prefer(uint32{1} << device_number(first), &route);
    return route;
}

Route route_load(const MirrorKey& key, Placement placement) {
    if (service->devices == 1) return {{service_device(0)}, 1, 0, 0, 0};
    if (placement == Placement::single) return route_single(key);
    const Copies copies = find_copies(key, placement == Placement::replicate);
    Route route = {};
    for (int i = 0; i < copies.count; ++i) route.devices[route.count++] = copies.items[i].device;
    if (route.count > 0 || placement == Placement::replicate) return route;
    ServiceDevice* home = home_of(copies);
    return {{home}, home ? 1 : 0, 0, 0, 0};
}

const HeldIndex* find_held(const ServiceDevice* device, Oid database, Oid index) {
    return find(device, name_of(database, index));
}

bool is_held(const ServiceDevice* device, const MirrorKey& key) {
    HeldIndex* held = find(device, name_of(key.database, key.index));
    return held && pg_atomic_read_u64(&held->build) == build_of(key) &&
           pg_atomic_read_u32(&held->lists) > 0;
}

bool is_refused(const ServiceDevice* device, const MirrorKey& key) {
    HeldIndex* held = find(device, name_of(key.database, key.index));
    return held && pg_atomic_read_u64(&held->build) == build_of(key) &&
           pg_atomic_read_u64(&held->refused) > 0;
}

uint32 busy_searches(const ServiceDevice* device) {
    return ring_count(search_ring(device)) +
           pg_atomic_read_u32(const_cast<pg_atomic_uint32*>(&device->in_flight));
}

void publish_held(ServiceDevice* device, const MirrorKey& key, const MirrorUse& use) {
    const uint64 name = name_of(key.database, key.index);
    HeldIndex* held = find(device, name);
    if (use.lists == 0) {
        if (held && pg_atomic_read_u64(&held->build) == build_of(key)) set_free(held);
        return;
    }
    const bool is_new = !held;
    if (is_new) held = take_place(device, name);
    if (!held) return;
    if (is_new) set_free(held);
    pg_atomic_write_u64(&held->build, build_of(key));
    pg_atomic_write_u32(&held->lists, use.lists);
    pg_atomic_write_u32(&held->resident_lists, use.resident_lists);
    pg_atomic_write_u32(&held->foreign_lists, use.foreign_lists);
    pg_atomic_write_u64(&held->bytes, use.bytes);
    pg_atomic_write_u64(&held->batches, use.batches);
    pg_atomic_write_u64(&held->batch_queries, use.batch_queries);
    pg_atomic_write_u64(&held->refused, 0);
    if (!is_new) return;
    // Written last, because readers take no lock.
    pg_write_barrier();
    pg_atomic_write_u64(&held->name, name);
}

void publish_refused(ServiceDevice* device, const MirrorKey& key, uint64 bytes) {
    const uint64 name = name_of(key.database, key.index);
    HeldIndex* held = find(device, name);
    if (!held) {
        held = take_place(device, name);
        if (!held) return;
        pg_atomic_write_u64(&held->name, 0);
    }
    set_empty(held);
    pg_atomic_write_u64(&held->build, build_of(key));
    pg_atomic_write_u64(&held->refused, bytes);
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
