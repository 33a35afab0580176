// Measuring the recall curve of an index in VACUUM: of one whose training was interrupted before it
// had one, or whose rows have changed since.
#pragma once

#include "extension/create/sample.h"
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

// Whether the index has no curve, or a fifth as many rows came and went since it was measured as it
// was measured with. A curve of ivfpq_learn() stays: rows would measure another one.
bool should_measure(Relation index, const MetaPage& meta, BufferAccessStrategy ring);

// How many queries are compared with all rows.
uint32 most_queries(uint64 rows, uint32 dims);

// TIDs of entries of the lists, drawn at random.
Sample draw_from_lists(Relation index, const MetaPage& meta, BufferAccessStrategy ring, uint32 room,
                       Random* random);

// Called by VACUUM. Does nothing where too few rows are visible.
void measure_in_place(Relation index, BufferAccessStrategy ring);

}  // namespace pgwarp
