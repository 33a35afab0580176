// The nearest rows for many queries, a batch at a time.
//
// Candidates of a whole batch come from the lists together (lists.h). Their rows are visited in
// the order they lie in, each once, however many queries want it: a page of the table is pinned
// once a batch, a vector is fetched once, and with it comes the key. A query that has fewer than k
// rows after this, because its candidates are not visible or its lists are short, goes on as an
// ordinary scan does.
#pragma once

#include "extension/knn/index.h"

namespace pgwarp {

// Lives in the memory context that is current when it is opened; `index` outlives it.
struct KnnBatch;
KnnBatch* open_knn_batch(const KnnIndex& index, uint32 k);
void close_knn_batch(KnnBatch* batch);

// Queries that memory has room for, vectors of the caller's included.
uint32 most_queries(const KnnBatch* batch);

// Searches for these queries, (count)(dims).
void search_batch(KnnBatch* batch, const float* queries, uint32 count);

// The rows of a query of the last search, nearest first, with the operator's distances.
struct KnnRows {
    const KnnRow* rows;
    uint32 count;
};
KnnRows rows_of(const KnnBatch* batch, uint32 query);

}  // namespace pgwarp
