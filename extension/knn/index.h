// An index as functions that search it for others open it: with the caller's rights.
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
    AttrNumber key_attribute;  // 0: none, rows are known by their places
    Oid key_type;              // without domains
    // Rows are asked for by a query: policies of row security stand between the caller and the
    // table, or the index is too young for his snapshot.
    bool by_query;
};

// Opens an ivfpq index and its table, with AccessShareLock until the end of the transaction.
// Reports an error where the relation is no such index on a column, or where the caller may not
// read the columns that he would get. `key` may be null.
KnnIndex open_knn_index(Oid index, const char* key);
void close_knn_index(const KnnIndex& index);

// A row that was found.
struct KnnRow {
    double distance;  // what the index orders by; may be NaN, which comes last
    ItemPointerData place;
    bool key_is_null;
    int64 key;
};

// What the operator of the index gives for a distance by exact_distance().
double operator_distance(Metric metric, double distance);

// The rows nearest to one query, by a query to the table: what the planner makes of it, and what
// policies leave. Returns their number, at most k. Distances are the operator's.
struct KnnQuery;
KnnQuery* open_knn_query(const KnnIndex& index, uint32 k);
uint32 run_knn_query(KnnQuery* query, const float* vector, KnnRow* rows);

}  // namespace pgwarp
