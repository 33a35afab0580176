#include <algorithm>
#include <cmath>
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

uint32 seconds_now_coarse() {
    return static_cast<uint32>(GetCurrentTimestamp() / USECS_PER_SEC);
}

std::span<ShardMap> ways_of(Oid database, Oid index) {
    constexpr uint32 sets = most_shard_maps / shard_ways;
    const uint64 name = (uint64{database} << 32 | index) * UINT64CONST(0x9e3779b97f4a7c15);
    return {service->shard_maps + static_cast<uint32>(name >> 32) % sets * shard_ways, shard_ways};
}

// A copy of a map, without the fields that only its writers need.
struct KnownMap {
    MirrorKey key;
    Shards shards;
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
    Shards* shards = &known->shards;
    shards->members = map->members;
    shards->parts = map->parts;
    std::copy_n(map->last, most_devices, shards->last);
    std::copy_n(map->weights, most_devices, shards->weights);
    std::copy_n(map->part_of, most_devices, shards->part_of);
    std::copy_n(map->shares, most_devices, shards->shares);
    std::copy_n(map->lists, most_devices, shards->lists);
    shards->bytes = map->bytes;
    known->spread = map->spread != 0;
    pg_read_barrier();
    if (known->measured_at == 0 || pg_atomic_read_u32(&map->sequence) != sequence) return false;
    // Whatever is in shared memory: devices are those that there are, and a list is in one part.
    shards->members &= static_cast<uint32>((uint64{1} << service->devices) - 1);
    for (int i = 0; i < service->devices; ++i)
        if (shards->has(i) && shards->part_of[i] >= shards->parts) return false;
    if (shards->parts < 1 || shards->parts > static_cast<uint32>(most_devices)) return false;
    return std::is_sorted(shards->last, shards->last + shards->parts - 1);
}

ShardMap* find_map(Oid database, Oid index, KnownMap* known) {
    for (ShardMap& map : ways_of(database, index))
        if (read_map(&map, database, index, known)) return &map;
    return nullptr;
}

// Under ServiceShared::lock. Makes `sequence` odd and then even whatever it was, as a damaged value
// must not stay.
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
    place->parts = known.shards.parts;
    std::copy_n(known.shards.last, most_devices, place->last);
    std::copy_n(known.shards.weights, most_devices, place->weights);
    std::copy_n(known.shards.part_of, most_devices, place->part_of);
    std::copy_n(known.shards.shares, most_devices, place->shares);
    std::copy_n(known.shards.lists, most_devices, place->lists);
    place->bytes = known.shards.bytes;
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

// The device's memory for lists; where that is unknown, the smallest of the others.
float memory_of(int device) {
    const int64 budget = service_device(device)->info.list_budget;
    return static_cast<float>(std::max<int64>(budget > 0 ? budget : smallest_budget(), 1));
}

// Gives each member a part, in turn. The more members own a part, the larger it is: so every device
// has the same work.
Shards deal(uint32 members, uint32 parts) {
    Shards shards = {};
    shards.members = members;
    shards.parts = std::max(parts, 1u);
    uint32 next = 0;
    for (int i = 0; i < service->devices; ++i) {
        if (!shards.has(i)) continue;
        shards.part_of[i] = static_cast<uint8>(next++ % shards.parts);
        shards.weights[shards.part_of[i]] += memory_of(i);
    }
    return shards;
}

// Ranges as long as the devices' memory.
void cut_by_number(Shards* shards) {
    double before = 0;
    for (uint32 part = 0; part < shards->parts; ++part) {
        shards->shares[part] = static_cast<float>(shards->share(part));
        before += shards->share(part);
        shards->last[part] = part + 1 == shards->parts
                                 ? PG_UINT32_MAX
                                 : static_cast<uint32>(std::min(before, 1.0) * PG_UINT32_MAX);
    }
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
              [](uint32 a, uint32 b) { return hash_of_list(a) < hash_of_list(b); });
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

void cut_by_bytes(const ListSizes& sizes, Shards* shards) {
    cut_by_number(shards);
    if (sizes.all == 0) return;
    double share = 0, bytes = 0;
    uint32 at = 0;
    for (uint32 part = 0; part + 1 < shards->parts; ++part) {
        share += shards->share(part);
        const double end = static_cast<double>(sizes.all) * share;
        for (; at < sizes.count && bytes + static_cast<double>(sizes.bytes[at]) / 2 <= end; ++at)
            bytes += static_cast<double>(sizes.bytes[at]);
        // Hashes of no list may lie on either side. The first list has hash 0, with nothing before.
        const uint32 next = at == sizes.count ? 0 : hash_of_list(sizes.lists[at]);
        shards->last[part] = at == sizes.count ? PG_UINT32_MAX : next - (next > 0);
    }
}

bool is_balanced(const ListSizes& sizes, const Shards& shards) {
    double bytes[most_devices] = {};
    for (uint32 i = 0; i < sizes.count; ++i)
        bytes[shards.part(sizes.lists[i])] += static_cast<double>(sizes.bytes[i]);
    for (uint32 part = 0; part < shards.parts; ++part) {
        const double share = static_cast<double>(sizes.all) * shards.share(part);
        if (bytes[part] > share + share / tolerated_part + static_cast<double>(sizes.largest))
            return false;
    }
    return true;
}

// What each part has.
void count_parts(const ListSizes& sizes, Shards* shards) {
    double bytes[most_devices] = {};
    std::fill_n(shards->lists, most_devices, 0u);
    for (uint32 i = 0; i < sizes.count; ++i) {
        const uint32 part = shards->part(sizes.lists[i]);
        bytes[part] += static_cast<double>(sizes.bytes[i]);
        ++shards->lists[part];
    }
    shards->bytes = sizes.all;
    for (uint32 part = 0; part < shards->parts; ++part)
        shards->shares[part] = static_cast<float>(
            sizes.all > 0 ? bytes[part] / static_cast<double>(sizes.all) : shards->share(part));
}

// --- copies of parts

// Bytes that a device has of other indexes.
uint64 bytes_of_others(const ServiceDevice* device, const MirrorKey& key) {
    const uint64 name = uint64{key.database} << 32 | key.index;
    uint64 bytes = 0;
    for (const HeldIndex& held : device->held) {
        auto* item = const_cast<HeldIndex*>(&held);
        const uint64 other = pg_atomic_read_u64(&item->name);
        if (other != 0 && other != name) bytes += pg_atomic_read_u64(&item->bytes);
    }
    return bytes;
}

// Whether each device has room for its part, times `spare`, beside its other indexes.
bool fit(const Shards& shards, const MirrorKey& key, uint64 bytes, double spare) {
    for (int i = 0; i < service->devices; ++i) {
        if (!shards.has(i)) continue;
        const ServiceDevice* device = service_device(i);
        const auto room = static_cast<double>(device->info.list_budget) -
                          static_cast<double>(bytes_of_others(device, key));
        if (static_cast<double>(bytes) * shards.share(shards.part_of[i]) * spare > room)
            return false;
    }
    return true;
}

// The fewest parts that the devices have room for, at least two: then most devices have copies.
Shards deal_copies(const MirrorKey& key, uint64 bytes, uint32 members) {
    // Lists grow, and ranges are not cut to the byte.
    constexpr double spare = 1.15;
    const auto devices = static_cast<uint32>(__builtin_popcount(members));
    for (uint32 parts = 2; parts < devices; ++parts) {
        const Shards shards = deal(members, parts);
        if (fit(shards, key, bytes, spare)) return shards;
    }
    return deal(members, devices);
}

// The parts as they were, with the devices of now: those that came get the parts with the fewest
// owners. False: a part has no owner.
bool keep_parts(const Shards& before, uint32 members, Shards* kept) {
    *kept = before;
    kept->members = members & before.members;
    for (uint32 part = 0; part < kept->parts; ++part)
        if (kept->owners(part) == 0) return false;
    for (int i = 0; i < service->devices; ++i) {
        if ((members >> i & 1) == 0 || kept->has(i)) continue;
        uint32 to = 0;
        const auto owners = [kept](uint32 part) { return __builtin_popcount(kept->owners(part)); };
        for (uint32 part = 1; part < kept->parts; ++part)
            if (owners(part) < owners(to)) to = part;
        kept->part_of[i] = static_cast<uint8>(to);
        kept->members |= uint32{1} << i;
    }
    return true;
}

// Whether parts are as large as those that would be cut now, by about an eighth.
bool alike(const Shards& a, const Shards& b) {
    bool same = a.parts == b.parts;
    for (uint32 part = 0; same && part < a.parts; ++part)
        same = std::abs(a.share(part) - b.share(part)) * tolerated_part <= b.share(part);
    return same;
}

// The owners of parts from now on. `copies`: parts may have several owners. Parts move only if it
// is worth it: another device or more memory makes larger ones possible, or there is no room for
// them.
Shards next_shards(const ListSizes& sizes, const MirrorKey& key, uint32 members, bool copies,
                   const Shards* before) {
    const auto devices = static_cast<uint32>(__builtin_popcount(members));
    Shards next = copies ? deal_copies(key, sizes.all, members) : deal(members, devices);
    Shards kept;
    if (before && keep_parts(*before, members, &kept) && is_balanced(sizes, kept)) {
        const bool came = (members & ~before->members) != 0;
        const bool enough = copies ? kept.parts <= next.parts : kept.parts == next.parts;
        const bool in_place = kept.parts == devices || fit(kept, key, sizes.all, 1);
        if (enough && in_place && (!came || kept.parts < next.parts || alike(kept, next)))
            return kept;
    }
    cut_by_bytes(sizes, &next);
    return next;
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
    // An index that was too large must be smaller by a quarter before it moves again.
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
    known.spread =
        placement == Placement::shard || is_too_large(sizes.all, before && before->spread);
    known.measured_at = std::max(seconds_now_coarse(), 1u);
    known.shards = next_shards(sizes, key, members, placement == Placement::automatic,
                               before ? &before->shards : nullptr);
    count_parts(sizes, &known.shards);
    pfree(sizes.bytes);
    pfree(sizes.lists);
    write_map(known);
    return known;
}

}  // namespace

uint32 Shards::part(uint32 list) const {
    const uint32 hash = hash_of_list(list);
    uint32 at = 0;
    while (at + 1 < parts && hash > last[at]) ++at;
    return at;
}

uint32 Shards::owners(uint32 part) const {
    uint32 devices = 0;
    for (int i = 0; i < most_devices; ++i)
        if (has(i) && part_of[i] == part) devices |= uint32{1} << i;
    return devices;
}

uint32 Shards::owned(int device, uint32 lists) const {
    uint32 count = 0;
    for (uint32 i = 0; i < lists; ++i) count += owns(device, i);
    return count;
}

ListRange Shards::range(uint32 part) const {
    constexpr ListRange none{1, 0};
    const uint32 end = part + 1 == parts ? PG_UINT32_MAX : last[part];
    if (part == 0) return {0, end};
    return last[part - 1] < end ? ListRange{last[part - 1] + 1, end} : none;
}

double Shards::share(uint32 part) const {
    double all = 0;
    for (uint32 i = 0; i < parts; ++i) all += weights[i];
    return all > 0 ? weights[part] / all : 1;
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
        known.shards = deal(members, static_cast<uint32>(__builtin_popcount(members)));
        cut_by_number(&known.shards);
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
        bytes += static_cast<int64>(static_cast<double>(known.shards.bytes) *
                                    (1 - known.shards.share(known.shards.part_of[number])));
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
