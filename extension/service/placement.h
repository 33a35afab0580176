// Which devices have an index, and which of them a search asks.
//
// Each worker publishes the indexes that its device has (ServiceDevice::held). Backends read this
// without a lock and choose. A wrong choice costs time and nothing else: the worker that is asked
// knows what it has, and its answer is checked against the pages, whoever gave it.
//
// An index belongs to the device that has it, also while the device's worker is restarted: moving
// it to another device would evict what is there. Sessions read the pages meanwhile. A device that
// is away for longer loses its indexes to others.
#pragma once

#include "extension/service/service.h"

namespace pgwarp {

// Devices to ask, one after the other until one has an answer.
struct Route {
    ServiceDevice* devices[most_devices];
    int count;
};

// For a search. None: the session reads the pages.
Route route_search(const MirrorKey& key);
// For loading the whole index.
Route route_load(const MirrorKey& key);

// What a device has of an index. Null: nothing is published.
const HeldIndex* find_held(const ServiceDevice* device, Oid database, Oid index);

// Searches that wait for the device or run there.
uint32 busy_searches(const ServiceDevice* device);

// Called by the device's worker:
// The device has this of an index now; use.lists 0: it has no longer that build of the index.
void publish_held(ServiceDevice* device, const MirrorKey& key, const MirrorUse& use);
// Index 0: all of the database.
void forget_held(ServiceDevice* device, Oid database, Oid index);
// When the worker exits: the device has nothing, but the indexes still belong to it. Allocates
// nothing.
void empty_held(ServiceDevice* device);
// When a worker starts: indexes do not belong to a device that was away for long.
void renew_held(ServiceDevice* device);

}  // namespace pgwarp
