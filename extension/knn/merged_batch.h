// The nearest rows for many queries, in an index or in all leaves of one of a partitioned table.
//
// Leaves whose lists fit into memory together are kept open for the whole call, and searched as
// one. Otherwise one leaf is open at a time, and its lists are read again for each block: it looks
// for rows that are nearer than the k nearest of the leaves before.
#pragma once

#include "extension/knn/batch.h"

namespace pgwarp {

// Lives in the memory context that is current when it is opened; `index` outlives it.
struct MergedBatch;
MergedBatch* open_merged_batch(const KnnIndex& index, uint32 k);
// Null where maintenance_work_mem is too small for one query.
MergedBatch* try_merged_batch(const KnnIndex& index, uint32 k);
void close_merged_batch(MergedBatch* batch);

// As those of a KnnBatch.
uint32 most_queries(const MergedBatch* batch);
void search_batch(MergedBatch* batch, const float* queries, uint32 count,
                  const KnnValues& equal = {});
KnnRows rows_of(const MergedBatch* batch, uint32 query);

}  // namespace pgwarp
