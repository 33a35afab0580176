// Batches of the partitions of a table, searched as one.
//
// A row is among the k nearest whatever partition it is in. So each partition is searched for as
// many rows as fall to it by chance, and the candidates of all are ranked in one order, by code:
// their number is that of one search, whatever the number of partitions. Where more of the k
// nearest candidates of a query lie in one partition than chance explains, that partition is
// searched again for it, for all k rows, as a table of its own would be. Where rows are partitioned
// by what is near, a query's own partition tells how far it has to look into others.
#pragma once

#include "extension/knn/batch.h"

namespace pgwarp {

// As search_batch() of each of them. But rows_of() has only those rows of a batch that are among
// the k nearest of all. False: nothing was searched, as these batches cannot be searched as one:
// they have conditions, exact searches, lists that do not fit into memory, or codes that cannot be
// compared. All have the same k.
bool search_jointly(KnnBatch* const* batches, int count, const float* queries, uint32 query_count);

}  // namespace pgwarp
