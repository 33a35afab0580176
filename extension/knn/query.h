// The rows nearest to a vector, by an SQL query with ORDER BY and LIMIT: the planner chooses the
// plan, conditions and row security apply. Index scans of such a plan are those of any query.
#pragma once

#include "extension/knn/index.h"

namespace pgwarp {

// Keeps an SPI connection until it is closed: connections that are opened meanwhile must be
// finished before. Lives in the memory context that is current when it is opened.
struct KnnQuery;
KnnQuery* open_knn_query(const KnnIndex& index, uint32 k);
void close_knn_query(KnnQuery* query);

// What the index's columns have to equal, (KnnIndex::equal_count).
struct KnnValues {
    const Datum* values;
    const bool* nulls;
};
// Returns the number of rows, at most k, in any order. Distances are the operator's, by
// ranked_distance().
uint32 run_knn_query(KnnQuery* query, const float* vector, const KnnValues& equal, KnnRow* rows);

}  // namespace pgwarp
