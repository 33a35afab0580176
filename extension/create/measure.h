// Measuring the recall curve of an index whose training was interrupted before it had one.
#pragma once

#include "extension/index/format.h"

extern "C" {
#include "storage/bufmgr.h"
#include "utils/rel.h"
}

namespace pgwarp {

// Every measurement stores its steps, even one that found no neighbors to measure recall
// with.
inline bool was_measured(const MetaPage& meta) {
    return meta.curve.steps > 0;
}

// Called by VACUUM. Does nothing where too few rows are visible.
void measure_in_place(Relation index, BufferAccessStrategy ring);

}  // namespace pgwarp
