// Opening an index and its table for searches in batches, with the caller's rights.
#pragma once

#include "kernels/common.h"
#include "extension/compat.h"
#include "extension/table/key_names.h"

extern "C" {
#include "access/attnum.h"
#include "executor/tuptable.h"
#include "storage/itemptr.h"
}

namespace pgwarp {

// A column of the index's table, and the query's value that it has to equal.
struct KnnEqual {
    AttrNumber attribute;
    Oid type;  // of the query's value
};

// A condition on rows that depends on the query: whether a row may be one of this query's.
struct KnnRowCheck {
    bool (*passes)(void* state, uint32 query, TupleTableSlot* row);  // null: all may
    void* state;
    double share;  // of the rows that are expected to pass
};

struct KnnIndex {
    Relation heap;
    Relation index;
    Metric metric;
    uint32 dims;
    AttrNumber vector_attribute;
    AttrNumber key_attribute;  // 0: none, rows are identified by TID
    Oid key_type;              // base type of a domain
    KeyNames* names;           // of keys; null: they are integers
    bool entry_places;         // a row's place is its entry's TID, not that of the visible version
    bool rights_checked;       // by the executor, see TableColumns
    KnnRowCheck check;
    uint32 part;  // its number among those that are searched for the same queries
    // Search by an SQL query instead of reading the index: row security applies to the caller,
    // another extension plans queries of the table (table/planned.h), the index is too young for
    // the snapshot (indcheckxmin), the key is a virtual column, or the rows have to meet
    // conditions.
    bool by_query;
    // Conditions on the rows: see condition.h.
    const char* condition;  // an SQL expression; null: none
    KnnEqual* equals;
    int equal_count;
    // Of an index of a partitioned table, which has no pages: its leaves. None where the search is
    // by a query.
    bool partitioned;
    KnnIndex* leaves;
    int leaf_count;
};

// Opens an ivfpq index and its table, with AccessShareLock until the end of the transaction. Those
// of a partitioned table are opened with all leaves. The caller needs rights on the partitioned
// table only, as for a query.
// Reports an error if the relation is not an ivfpq index on a column, or if the caller may not read
// the columns of the result. `key` may be null; it is an integer unless keys have names.
KnnIndex open_knn_index(Oid index, const char* key, KeyNames* names = nullptr);
void close_knn_index(const KnnIndex& index);

struct KnnRow {
    double distance;  // by ranked_distance() until the rows are sorted, then the operator's
    int64 key;
    Oid table;  // that has the row: the index's, or a partition
    ItemPointerData place;
    bool key_is_null;
    uint32 part;  // KnnIndex::part
};
// By ranked_distance(). Ties: by TID, then by table.
bool nearer(const KnnRow& a, const KnnRow& b);

// Converts a distance by exact_distance() into the result of the index's operator.
double operator_distance(Metric metric, double distance);

}  // namespace pgwarp
