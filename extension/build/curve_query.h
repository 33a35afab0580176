// One query of the recall curve; tally_query() is declared in curve.h.
#pragma once

#include "extension/build/curve.h"

namespace pgwarp {

// Writes for each neighbor the rank of its list, (query.room); returns how many neighbors there
// are. Allocates in the current memory context.
uint32 rank_neighbor_lists(Relation index, const MetaPage& meta, const CurveQuery& query,
                           uint32* list_ranks);

}  // namespace pgwarp
