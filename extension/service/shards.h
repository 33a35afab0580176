// Which device owns which lists of an index that is spread over devices.
//
// A list has a hash, and each part of the index has the lists of a range of hashes. Ranges are cut
// by the bytes of lists, from the pages in the directory. They are in shared memory (ShardMap), so
// that all backends agree. One backend measures every ten seconds. It cuts anew if devices have
// come or gone, or if a part has more than its share by an eighth: lists that have grown a little
// stay where they are.
//
// Each device owns one part. With `shard` there are as many parts as devices. With 'auto' there are
// fewer if memory is left: then several devices own a part, each a copy of it. A device that goes
// leaves its part to those that have it; the parts stay as they are while each has an owner.
//
// Owners are hints: they decide which device is sent a list. Which device has a list is what its
// answers say, and those are checked.
#pragma once

#include "extension/service/service.h"

extern "C" {
#include "utils/rel.h"
}

namespace pgwarp {

struct Shards {
    uint32 members;  // devices that own lists, a bit each
    uint32 parts;
    uint32 last[most_devices];    // (parts)
    float weights[most_devices];  // (parts)
    uint8 part_of[most_devices];  // of members
    // As measured last:
    float shares[most_devices];  // (parts) of all bytes
    uint32 lists[most_devices];  // (parts) 0: unknown, or none
    uint64 bytes;                // of the index; 0: unknown

    bool has(int device) const { return (members >> device & 1) != 0; }
    // The part that a list belongs to.
    uint32 part(uint32 list) const;
    bool owns(int device, uint32 list) const {
        return has(device) && part_of[device] == part(list);
    }
    // The devices that own a part, a bit each.
    uint32 owners(uint32 part) const;
    // How many of the first `lists` lists a device owns.
    uint32 owned(int device, uint32 lists) const;
    // The lists of a part, by their hashes.
    ListRange range(uint32 part) const;
    // What a part has of the index, by the sizes that it was cut for.
    double share(uint32 part) const;
};

Placement placement_of(Relation index);

// Whether devices get refinements with the lists of this index: if it has any, and the devices that
// it is kept on have room for all of them. They are several times as large as codes, without which
// lists would not be there at all.
bool keeps_refinements(Relation index, const MetaPage& meta);

// Whether the index is spread over devices, and which devices own its lists. `measure`: read the
// sizes of lists now.
bool find_shards(Relation index, const MetaPage& meta, const MirrorKey& key, Shards* shards,
                 bool measure = false);

// The same without the relation, as it was last.
bool known_shards(Oid database, Oid index, Shards* shards);

// Mirror::load() counts an index as a whole: the bytes of it that belong to other devices. `holds`
// says whether load() counts an index at all.
using HoldsIndex = bool(const ServiceDevice* device, const MirrorKey& key);
int64 bytes_elsewhere(const ServiceDevice* device, HoldsIndex* holds);

// Index 0: all of the database.
void forget_shards(Oid database, Oid index);

}  // namespace pgwarp
