#include <algorithm>
#include <numeric>
#include <span>

#include "extension/index/options.h"
#include "extension/index/page.h"
#include "extension/index/place.h"
#include "extension/service/shards.h"
#include "extension/settings.h"

extern "C" {
#include "storage/bufmgr.h"
}

namespace pgwarp {

namespace {

// Seconds after which the sizes of lists are read again.
constexpr uint32 measure_interval = 10;
// A device may have this part more than its share.
constexpr uint64 tolerated_part = 8;

static_assert(most_devices <= 32, "members are bits");

// Each list has another one.
uint32 hash_of(uint32 list) {
    uint32 hash = list;
    hash = (hash ^ hash >> 16) * 0x85ebca6bu;
    hash = (hash ^ hash >> 13) * 0xc2b2ae35u;
    return hash ^ hash >> 16;
}

uint32 seconds_now_coarse() {
    return static_cast<uint32>(GetCurrentTimestamp() / USECS_PER_SEC);
}

std::span<ShardMap> ways_of(Oid database, Oid index) {
    constexpr uint32 sets = most_shard_maps / shard_ways;
    const uint64 name = (uint64{database} << 32 | index) * UINT64CONST(0x9e3779b97f4a7c15);
    return {service->shard_maps + static_cast<uint32>(name >> 32) % sets * shard_ways, shard_ways};
}

// What a map says, without what only its writers need.
struct KnownMap {
    MirrorKey key;
    Shards shards;
    uint64 bytes;
    bool spread;
    uint32 measured_at;
};

// False: the map is free, of another index, or being written.
bool read_map(ShardMap* map, Oid database, Oid index, KnownMap* known) {
    const uint32 sequence = pg_atomic_read_u32(&map->sequence);
    pg_read_barrier();
    if (sequence % 2 != 0 || map->key.database != database || map->key.index != index) return false;
    known->measured_at = pg_atomic_read_u32(&map->measured_at);
    known->key = map->key;
    known->shards.members = map->members;
    std::copy_n(map->last, most_devices, known->shards.last);
    known->bytes = map->bytes;
    known->spread = map->spread != 0;
    pg_read_barrier();
    return known->measured_at != 0 && pg_atomic_read_u32(&map->sequence) == sequence;
}

ShardMap* find_map(Oid database, Oid index, KnownMap* known) {
    for (ShardMap& map : ways_of(database, index))
        if (read_map(&map, database, index, known)) return &map;
    return nullptr;
}

// Under ServiceShared::lock. Odd and then even, whatever it was: a backend that went mad may have
// written it.
void begin_write(ShardMap* map) {
    pg_atomic_write_u32(&map->sequence, pg_atomic_read_u32(&map->sequence) | 1);
    pg_write_barrier();
}
void end_write(ShardMap* map) {
    pg_write_barrier();
    pg_atomic_write_u32(&map->sequence, (pg_atomic_read_u32(&map->sequence) | 1) + 1);
}

void write_map(const KnownMap& known) {
    LWLockAcquire(service->lock, LW_EXCLUSIVE);
    ShardMap* place = nullptr;
    for (ShardMap& map : ways_of(known.key.database, known.key.index)) {
        const bool is_free = pg_atomic_read_u32(&map.measured_at) == 0;
        if (!is_free && map.key.database == known.key.database &&
            map.key.index == known.key.index) {
            place = &map;
            break;
        }
        const auto age = [](ShardMap* one) {
            return pg_atomic_read_u32(&one->measured_at) == 0 ? 0
                                                              : pg_atomic_read_u32(&one->used_at);
        };
        if (!place || age(&map) < age(place)) place = &map;
    }
    begin_write(place);
    place->key = known.key;
    place->members = known.shards.members;
    std::copy_n(known.shards.last, most_devices, place->last);
    place->bytes = known.bytes;
    place->spread = known.spread;
    pg_atomic_write_u32(&place->measured_at, known.measured_at);
    pg_atomic_write_u32(&place->used_at, known.measured_at);
    end_write(place);
    LWLockRelease(service->lock);
}

// Devices that serve, or will soon.
uint32 members_now() {
    uint32 members = 0;
    for (int i = 0; i < service->devices; ++i) {
        const ServiceDevice* device = service_device(i);
        if (is_available(device) || !is_away_for_long(device)) members |= uint32{1} << i;
    }
    return members;
}

// Of the devices that were ever open; 0: unknown.
int64 smallest_budget() {
    int64 smallest = 0;
    for (int i = 0; i < service->devices; ++i) {
        const int64 budget = service_device(i)->info.list_budget;
        if (budget > 0 && (smallest == 0 || budget < smallest)) smallest = budget;
    }
    return smallest;
}

// The memory of each member, for its share of the lists.
struct Weights {
    double items[most_devices];
    double sum;
};
Weights weights_of(uint32 members) {
    Weights weights = {};
    const double otherwise = std::max<double>(static_cast<double>(smallest_budget()), 1);
    for (int i = 0; i < service->devices; ++i) {
        if ((members >> i & 1) == 0) continue;
        const auto budget = static_cast<double>(service_device(i)->info.list_budget);
        weights.items[i] = budget > 0 ? budget : otherwise;
        weights.sum += weights.items[i];
    }
    return weights;
}

// Ranges as long as the devices' memory.
Shards cut_by_number(uint32 members) {
    Shards shards = {members, {}};
    const Weights weights = weights_of(members);
    double before = 0;
    for (int i = 0; i < service->devices; ++i) {
        before += weights.items[i];
        const double part = weights.sum > 0 ? before / weights.sum : 1;
        shards.last[i] = static_cast<uint32>(std::min(part, 1.0) * PG_UINT32_MAX);
    }
    return shards;
}

// Bytes of each list as a mirror keeps them, in the order of hashes.
struct ListSizes {
    uint32* lists;  // (count)
    uint64* bytes;  // (count)
    uint32 count;
    uint64 all;
    uint64 largest;
};

ListSizes read_sizes(Relation index, const MetaPage& meta) {
    ListSizes sizes = {};
    sizes.count = meta.lists;
    sizes.lists = static_cast<uint32*>(palloc(sizes.count * sizeof(uint32)));
    sizes.bytes = static_cast<uint64*>(palloc(sizes.count * sizeof(uint64)));
    auto* places = static_cast<ListPlace*>(palloc(sizes.count * sizeof(ListPlace)));
    std::iota(sizes.lists, sizes.lists + sizes.count, 0u);
    read_places(index, meta, sizes.lists, sizes.count, places);
    std::sort(sizes.lists, sizes.lists + sizes.count,
              [](uint32 a, uint32 b) { return hash_of(a) < hash_of(b); });
    const EntryLayout layout = layout_of(meta, 0);
    const uint64 entry = layout.m + layout.attributes.entry_bytes() + sizeof(float) +
                         sizeof(uint64) +
                         (keeps_refinements(index, meta) ? refinement_stride(meta.code_dims) : 0);
    for (uint32 i = 0; i < sizes.count; ++i) {
        const uint64 pages = places[sizes.lists[i]].pages;
        // The last one is half full.
        const uint64 entries = pages * layout.capacity - (pages > 0 ? layout.capacity / 2 : 0);
        sizes.bytes[i] = entries * entry;
        sizes.all += sizes.bytes[i];
        sizes.largest = std::max(sizes.largest, sizes.bytes[i]);
    }
    pfree(places);
    return sizes;
}

Shards cut_by_bytes(const ListSizes& sizes, uint32 members) {
    Shards shards = cut_by_number(members);
    if (sizes.all == 0) return shards;
    const Weights weights = weights_of(members);
    double weight = 0, bytes = 0;
    uint32 at = 0;
    for (int i = 0; i < service->devices; ++i) {
        weight += weights.items[i];
        const double end = static_cast<double>(sizes.all) * weight / weights.sum;
        for (; at < sizes.count && bytes + static_cast<double>(sizes.bytes[at]) / 2 <= end; ++at)
            bytes += static_cast<double>(sizes.bytes[at]);
        // Hashes of no list may lie on either side. The first list has hash 0, with nothing before.
        const uint32 next = at == sizes.count ? 0 : hash_of(sizes.lists[at]);
        shards.last[i] = at == sizes.count ? PG_UINT32_MAX : next - (next > 0);
    }
    return shards;
}

bool is_balanced(const ListSizes& sizes, const Shards& shards) {
    double bytes[most_devices] = {};
    for (uint32 i = 0; i < sizes.count; ++i)
        bytes[shards.owner(sizes.lists[i])] += static_cast<double>(sizes.bytes[i]);
    const Weights weights = weights_of(shards.members);
    for (int i = 0; i < service->devices; ++i) {
        const double share = static_cast<double>(sizes.all) * weights.items[i] / weights.sum;
        if (bytes[i] > share + share / tolerated_part + static_cast<double>(sizes.largest))
            return false;
    }
    return true;
}

// True for one of the backends that find it due, at most once in a second.
bool may_measure(const MirrorKey& key, uint32 now) {
    const uint32 hash = (key.database ^ key.index) * 2654435761u >> 16;
    pg_atomic_uint32* at = &service->measuring_at[hash % ServiceShared::measure_times];
    uint32 before = pg_atomic_read_u32(at);
    return before != now && pg_atomic_compare_exchange_u32(at, &before, now);
}

// Whether 'auto' spreads an index of this size.
bool is_too_large(uint64 bytes, bool was) {
    const auto budget = static_cast<uint64>(smallest_budget());
    // One that was too large must be smaller by a quarter before it moves again.
    return budget > 0 && bytes > (was ? budget - budget / 4 : budget);
}

// By the size of the whole index at its last VACUUM, which includes other pages.
bool may_be_too_large(Relation index) {
    const auto pages = static_cast<uint64>(static_cast<BlockNumber>(index->rd_rel->relpages));
    // A TID takes more bytes on a device than on a page.
    return is_too_large(pages * BLCKSZ / 4 * 5, true);
}

// `before`: what is known of the index; null: nothing.
KnownMap measure(Relation index, const MetaPage& meta, const MirrorKey& key, Placement placement,
                 uint32 members, const KnownMap* before) {
    const ListSizes sizes = read_sizes(index, meta);
    KnownMap known = {};
    known.key = key;
    known.bytes = sizes.all;
    known.spread =
        placement == Placement::shard || is_too_large(sizes.all, before && before->spread);
    known.measured_at = std::max(seconds_now_coarse(), 1u);
    known.shards = before && before->shards.members == members && is_balanced(sizes, before->shards)
                       ? before->shards
                       : cut_by_bytes(sizes, members);
    pfree(sizes.bytes);
    pfree(sizes.lists);
    write_map(known);
    return known;
}

}  // namespace

int Shards::owner(uint32 list) const {
    const uint32 hash = hash_of(list);
    int device = 0;
    for (int i = 0; i < service->devices; ++i) {
        if (!has(i)) continue;
        device = i;
        if (hash <= last[i]) break;
    }
    return device;
}

uint32 Shards::owned(int device, uint32 lists) const {
    uint32 count = 0;
    for (uint32 i = 0; i < lists; ++i) count += owner(i) == device;
    return count;
}

Placement placement_of(Relation index) {
    const int option = options_of(index).placement;
    return static_cast<Placement>(option == placement_unset ? settings.placement : option);
}

bool keeps_refinements(Relation index, const MetaPage& meta) {
    if (meta.refinement == RefinementKind::none) return false;
    const Placement placement = placement_of(index);
    int64 room = smallest_budget();
    if (placement == Placement::shard || placement == Placement::automatic) {
        room = 0;
        for (int i = 0; i < service->devices; ++i) room += service_device(i)->info.list_budget;
    }
    // The file has other pages, too; TIDs take less room there.
    return static_cast<int64>(RelationGetNumberOfBlocks(index)) * BLCKSZ <= room;
}

bool find_shards(Relation index, const MetaPage& meta, const MirrorKey& key, Shards* shards,
                 bool measure_now) {
    if (!service || service->devices < 2 || meta.lists == 0) return false;
    const Placement placement = placement_of(index);
    KnownMap known;
    ShardMap* map = find_map(key.database, key.index, &known);
    if (placement == Placement::single || placement == Placement::replicate ||
        (placement == Placement::automatic && !may_be_too_large(index))) {
        if (map) forget_shards(key.database, key.index);
        return false;
    }
    const uint32 members = members_now();
    const uint32 now = seconds_now_coarse();
    const bool current = map && known.key == key;
    const bool due = !current || known.shards.members != members ||
                     now - known.measured_at >= measure_interval ||
                     (placement == Placement::shard && !known.spread);
    if (measure_now || (due && may_measure(key, now))) {
        known = measure(index, meta, key, placement, members, current ? &known : nullptr);
    } else if (!current) {
        // Another backend is about to know more.
        if (placement == Placement::automatic) return false;
        known.shards = cut_by_number(members);
        known.spread = true;
    } else if (pg_atomic_read_u32(&map->used_at) != now) {
        pg_atomic_write_u32(&map->used_at, now);
    }
    *shards = known.shards;
    return known.spread || placement == Placement::shard;
}

bool known_shards(Oid database, Oid index, Shards* shards) {
    KnownMap known;
    if (!service || !find_map(database, index, &known) || !known.spread) return false;
    *shards = known.shards;
    return true;
}

int64 bytes_elsewhere(const ServiceDevice* device, HoldsIndex* holds) {
    const int number = device_number(device);
    int64 bytes = 0;
    for (ShardMap& map : service->shard_maps) {
        KnownMap known;
        if (pg_atomic_read_u32(&map.measured_at) == 0 ||
            !read_map(&map, map.key.database, map.key.index, &known) || !known.spread ||
            !known.shards.has(number) || !holds(device, known.key))
            continue;
        const Weights weights = weights_of(known.shards.members);
        bytes += static_cast<int64>(static_cast<double>(known.bytes) *
                                    (1 - weights.items[number] / weights.sum));
    }
    return bytes;
}

void forget_shards(Oid database, Oid index) {
    LWLockAcquire(service->lock, LW_EXCLUSIVE);
    for (ShardMap& map : service->shard_maps) {
        if (pg_atomic_read_u32(&map.measured_at) == 0 || map.key.database != database ||
            (index != InvalidOid && map.key.index != index))
            continue;
        begin_write(&map);
        pg_atomic_write_u32(&map.measured_at, 0);
        end_write(&map);
    }
    LWLockRelease(service->lock);
}

}  // namespace pgwarp
