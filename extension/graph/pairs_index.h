// Pairs of rows of a table by its ivfpq index: every vector is a query.
#pragma once

#include "kernels/similar_pairs.h"
#include "extension/compat.h"
#include "extension/graph/pairs.h"

namespace pgwarp {

// Writes the pairs that the searches of the index find, at its ivfpq.target_recall. Reports an
// error if the table has no index that orders by this metric.
void find_pairs_by_index(const TableColumns& columns, const PairLimit& limit, PairWriter* writer);

}  // namespace pgwarp
