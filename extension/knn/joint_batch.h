// Batches of the partitions of a table, searched as one.
//
// A row is among the k nearest whatever partition it is in. So the candidates of all partitions are
// ranked in one order, by code: their number is that of one search, whatever the number of
// partitions. A query is searched for in the partition of its nearest list first. What it finds
// there tells how far it has to look into the others: its radius (kernels/list_plan.h).
#pragma once

#include "extension/knn/batch.h"

namespace pgwarp {

// As search_batch() of each of them. But rows_of() has only those rows of a batch that are among
// the k nearest of all. False: nothing was searched, as these batches cannot be searched as one:
// they have conditions, exact searches, lists that do not fit into memory, or codes that cannot be
// compared. All have the same k.
bool search_jointly(KnnBatch* const* batches, int count, const float* queries, uint32 query_count);

}  // namespace pgwarp
