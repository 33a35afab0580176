// What this backend has seen of lists: the version of each that was the current one, and how often
// the list had changed before (change_counts.h).
#pragma once

#include "kernels/mirror.h"
#include "extension/compat.h"

namespace pgwarp {

struct SeenList {
    uint64 changes;
    MirrorVersion version;  // not resident: the list was not seen
};

// Of the lists of an index, `count` in all. Valid until the next call. Null if nothing can be
// remembered: on a standby, or without memory.
SeenList* seen_lists(const MirrorKey& key, uint32 count);

}  // namespace pgwarp
