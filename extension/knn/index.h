// Opening an index and its table for searches in batches, with the caller's rights.
#pragma once

#include "kernels/common.h"
#include "extension/compat.h"

extern "C" {
#include "access/attnum.h"
#include "storage/itemptr.h"
}

namespace pgwarp {

// A column of the index's table, and the query's value that it has to equal.
struct KnnEqual {
    AttrNumber attribute;
    Oid type;  // of the query's value
};

struct KnnIndex {
    Relation heap;
    Relation index;
    Metric metric;
    uint32 dims;
    AttrNumber vector_attribute;
    AttrNumber key_attribute;  // 0: none, rows are identified by TID
    Oid key_type;              // base type of a domain
    // Search by an SQL query instead of reading the index: row security applies to the caller, the
    // index is too young for the snapshot (indcheckxmin), the key is a virtual column, or the rows
    // have to meet conditions.
    bool by_query;
    // Conditions on the rows: see condition.h.
    const char* condition;  // an SQL expression; null: none
    KnnEqual* equals;
    int equal_count;
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

}  // namespace pgwarp
