// Measuring the recall curve of an index whose training was cut short before it had one.
#pragma once

#include "extension/index/format.h"

extern "C" {
#include "storage/bufmgr.h"
#include "utils/rel.h"
}

namespace pgwarp {

// Every measurement leaves its steps, also one that found no neighbors to tell recall by.
inline bool was_measured(const MetaPage& meta) {
    return meta.curve.probe_steps > 0;
}

// For VACUUM. Does nothing where too few rows can be seen.
void measure_in_place(Relation index, BufferAccessStrategy ring);

}  // namespace pgwarp
