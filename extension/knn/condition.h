// Conditions on the rows that a search may return: an SQL expression over the columns of the
// index's table, and columns that equal those of the queries. The search is by a query then
// (query.h).
#pragma once

#include "extension/knn/index.h"

extern "C" {
#include "utils/array.h"
}

namespace pgwarp {

// Reports an error unless the text is one expression that may stand behind WHERE, without
// subqueries and volatile functions, over columns that the caller may read.
void set_condition(KnnIndex* index, const char* condition);

// Pairs of columns, from texts 'column' or 'query_column = column'.
struct EqualColumns {
    const char** query_columns;
    const char** columns;
    int count;
};
EqualColumns read_equal_columns(ArrayType* texts);

// Reports an error unless the index's table has these columns, the caller may read them, and there
// is an operator = for them and the types of the query's columns.
void set_equal_columns(KnnIndex* index, const EqualColumns& columns, const Oid* query_types);

}  // namespace pgwarp
