// Which devices have an index, and which of them a search asks.
//
// Each worker publishes the indexes that its device has (ServiceDevice::held). Backends read this
// without a lock and choose. A wrong choice costs time and nothing else: the worker that is asked
// knows what it has, and its answer is checked against the pages.
//
// pgwarp.placement, or an index's option, says how many devices are to have it:
//
//     single      one. The index belongs to the device that has it, also while the device's worker
//                 is restarted: moving it to another would evict what is there. Sessions read the
//                 pages meanwhile. A device that is away for longer loses its indexes to others.
//     replicate   all. A search asks the least busy of those that have as many of its lists as any.
//     shard       all, a part of its lists each (shards.h). Searches ask all of them.
//     auto        one, and one more when all that have it are busy, if it is small and another
//                 device has room for it. An index that is larger than a device's room is as with
//                 `shard`, but in fewer parts if there is room for copies of them; of the devices
//                 that own a part, searches ask the least busy.
//
// Sessions send lists to copies that lack them, also those that no search looks into (fill.h).
#pragma once

#include "extension/service/service.h"

extern "C" {
#include "utils/rel.h"
}

namespace pgwarp {

// Devices to ask, one after the other until one has an answer.
struct Route {
    ServiceDevice* devices[most_devices];
    int count;
    uint32 lacking;  // a bit each: those that lack lists which belong there
    uint32 foreign;  // those that have lists which do not
    uint64 bytes;    // that the first device has of the index
};

// For a search of a part of an index that is spread over devices: those among `owners`, a bit each.
// The part has this many lists; 0: unknown. One of `first` comes first, as below.
Route route_owners(const MirrorKey& key, uint32 owners, uint32 lists, uint32 first);

// Not for indexes that are spread over devices:

// For a search. None: the session reads the pages. `first` comes first, if it is one of the
// devices: the search goes on from its answer, and others may round distances otherwise. Null: any.
Route route_search(const MirrorKey& key, Placement placement, const ServiceDevice* first);
// For loading the whole index: all of these.
Route route_load(const MirrorKey& key, Placement placement);

// What a device has of an index. Null: nothing is published.
const HeldIndex* find_held(const ServiceDevice* device, Oid database, Oid index);

// Whether the device has said that it has the index's model.
bool is_held(const ServiceDevice* device, const MirrorKey& key);
// Whether the device has said that it has no room for the index's model.
bool is_refused(const ServiceDevice* device, const MirrorKey& key);

// Searches that wait for the device or run there.
uint32 busy_searches(const ServiceDevice* device);

// Called by the device's worker:
// The device has this of an index now; use.lists 0: it has no longer that build of the index.
void publish_held(ServiceDevice* device, const MirrorKey& key, const MirrorUse& use);
// The device refused the index's model of this size, which does not fit; 0 bytes: no longer.
void publish_refused(ServiceDevice* device, const MirrorKey& key, uint64 bytes);
// Index 0: all of the database.
void forget_held(ServiceDevice* device, Oid database, Oid index);
// When the worker exits: the device has nothing, but the indexes still belong to it. Allocates
// nothing.
void empty_held(ServiceDevice* device);
// When a worker starts: indexes do not belong to a device that was away for long.
void renew_held(ServiceDevice* device);

}  // namespace pgwarp
