// Searches of an index whose lists are spread over devices.
#pragma once

#include "extension/service/service_answer.h"
#include "extension/service/shards.h"

namespace pgwarp {

// Asks all devices that own lists at once, and makes one answer of theirs, as if one device had all
// lists that any of them has. False: there is none, and answer->why tells why.
bool ask_shards(Relation index, const MetaPage& meta, const MirrorKey& key, const Shards& shards,
                const WantedSearch& wanted, ServiceAnswer* answer);

}  // namespace pgwarp
