// The nearest rows for very many queries, by a device that compares each of them with every row.
//
// Where queries are many for the size of the table, that is less work than any visit to its rows
// one by one: the table is read once a batch, by workers, in the order it lies in, and what comes
// out is exact. The index is not read.
#pragma once

#include "extension/knn/index.h"

namespace pgwarp {

// Lives in the memory context that is current when it is opened; `index` outlives it.
struct KnnDevice;
// Null where it is not worth it for about so many queries, or where there is no device.
KnnDevice* open_knn_device(const KnnIndex& index, uint32 k, double queries);
void close_knn_device(KnnDevice* device);

// Queries of one search, vectors of the caller's included.
uint32 most_queries(const KnnDevice* device);

// Searches for these queries, (count)(dims). False: the device has failed, or there are vectors
// that it cannot compare; nothing was found then.
bool search_on_device(KnnDevice* device, const float* queries, uint32 count);

// A query's rows, nearest first, with the operator's distances; returns their number, at most k.
uint32 rows_of(const KnnDevice* device, uint32 query, KnnRow* rows);

}  // namespace pgwarp
