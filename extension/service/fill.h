// Lists for copies of an index that lack some.
//
// A search sends the lists that it had to read from pages. That leaves out lists that no search
// looks into, and copies that no search asks while others have more. So searches also fill: one of
// them every few milliseconds asks a device which lists it lacks, and sends it some, for a few
// milliseconds. Where there is no room, nothing is sent, and nothing is evicted for it.
#pragma once

#include "extension/service/service.h"
#include "extension/service/shards.h"

namespace pgwarp {

// `devices`: those that lack lists, a bit each. `shards`: the owners of lists of an index that is
// spread over devices; null: each has all of them. `models`: the model may be sent, too.
void fill_copies(Relation index, const MetaPage& meta, const MirrorKey& key, uint32 devices,
                 const Shards* shards, bool models);

// If the list is resident, the worker's answers are not complete because it lacks the list's last
// changes. Sends these, or tells the worker that the list is still the same.
void send_outdated(ServiceDevice* device, Relation index, const MetaPage& meta,
                   const MirrorKey& key, const MirrorProbe& probe);

// Tells devices of a spread index to drop lists that belong to others, once all owners have theirs.
void drop_foreign(Relation index, const MetaPage& meta, const MirrorKey& key, uint32 devices,
                  const Shards& shards);

}  // namespace pgwarp
