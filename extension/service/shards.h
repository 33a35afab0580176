// Which device owns which lists of an index that is spread over devices.
//
// A list has a hash, and each device owns the lists of a range of hashes. Ranges are cut so that
// devices get bytes in proportion to their memory, by the pages of lists in the directory, and are
// in shared memory (ShardMap), so that all backends agree. One backend measures every ten seconds.
// It cuts anew if devices have come or gone, or if one has more than its share by an eighth: lists
// that have grown a little keep their owner.
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
    uint32 last[most_devices];

    bool has(int device) const { return (members >> device & 1) != 0; }
    // The number of the device that owns a list.
    int owner(uint32 list) const;
    // How many of the first `lists` lists a device owns.
    uint32 owned(int device, uint32 lists) const;
};

Placement placement_of(Relation index);

// Whether devices get refinements with the lists of this index: if it has any, and the devices that
// it is kept on have room for all of them. They are several times as large as codes, without which
// lists would not be there at all.
bool keeps_refinements(Relation index, const MetaPage& meta);

// Whether the index is spread over devices, and who owns its lists. `measure`: read the sizes of
// lists now.
bool find_shards(Relation index, const MetaPage& meta, const MirrorKey& key, Shards* shards,
                 bool measure = false);

// The same for those who have no relation: as it was last.
bool known_shards(Oid database, Oid index, Shards* shards);

// Bytes that Mirror::load() counts for a device, but that other devices have: it takes an index for
// a whole one. `holds` says whether it counts an index at all.
using HoldsIndex = bool(const ServiceDevice* device, const MirrorKey& key);
int64 bytes_elsewhere(const ServiceDevice* device, HoldsIndex* holds);

// Index 0: all of the database.
void forget_shards(Oid database, Oid index);

}  // namespace pgwarp
