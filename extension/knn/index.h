// Opening an index and its table for searches in batches, with the caller's rights.
#pragma once

#include "kernels/common.h"
#include "extension/compat.h"

extern "C" {
#include "access/attnum.h"
#include "storage/itemptr.h"
}

namespace pgwarp {

struct KnnIndex {
    Relation heap;
    Relation index;
    Metric metric;
    uint32 dims;
    AttrNumber vector_attribute;
    AttrNumber key_attribute;  // 0: none, rows are identified by TID
    Oid key_type;              // base type of a domain
    // Search by an SQL query instead of reading the index: row security applies to the caller, the
    // index is too young for the snapshot (indcheckxmin), or the key is a virtual column.
    bool by_query;
};

// Opens an ivfpq index and its table, with AccessShareLock until the end of the transaction.
// Reports an error if the relation is not an ivfpq index on a column, or if the caller may not read
// the columns of the result. `key` may be null.
KnnIndex open_knn_index(Oid index, const char* key);
void close_knn_index(const KnnIndex& index);

struct KnnRow {
    double distance;  // what the index orders by; NaN sorts last
    ItemPointerData place;
    bool key_is_null;
    int64 key;
};

// Converts a distance by exact_distance() into the result of the index's operator.
double operator_distance(Metric metric, double distance);

// The rows nearest to one vector, by an SQL query with ORDER BY and LIMIT: the planner chooses the
// plan, and row security applies. Returns their number, at most k. Distances are the operator's.
struct KnnQuery;
KnnQuery* open_knn_query(const KnnIndex& index, uint32 k);
uint32 run_knn_query(KnnQuery* query, const float* vector, KnnRow* rows);

}  // namespace pgwarp
