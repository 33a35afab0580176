// Reading the indexed vectors of table rows by TID, and their exact distances.
#pragma once

#include "kernels/common.h"
#include "extension/types/vector.h"
#include "extension/types/vector_cache.h"

extern "C" {
#include "access/tableam.h"
#include "storage/itemptr.h"
#include "utils/rel.h"
#include "utils/snapshot.h"
}

namespace pgwarp {

// Lives in the memory context that is current when it is opened.
struct RowReader;
RowReader* open_row_reader(Relation heap, Relation index, Snapshot snapshot);

// The indexed vector of the version of a row that the snapshot sees, valid until the next call;
// null where it sees none, or where the value is null.
const Vector* read_row(RowReader* reader, ItemPointerData tid);

// Whether the snapshot sees a version of the row, without reading its vector.
bool sees_row(RowReader* reader, ItemPointerData tid);

// Of the row that read_row() gave last: where the version that the snapshot sees lies, which need
// not be where the index says, and a column's value.
ItemPointerData place_of_row(const RowReader* reader);
Datum value_of_row(RowReader* reader, AttrNumber attribute, bool* is_null);

// Tells the reader of a row that will be read, so that memory is under way by then: first later,
// when a few others come before it, and again soon; best of all some time before.
enum class Expected { some_time, later, soon };
void expect_row(const RowReader* reader, ItemPointerData tid, Expected when);

// Lets another fetch, of a row that was read before, go where the reader knows that it lies.
void ease_fetch(const RowReader* reader, IndexFetchTableData* fetch, const ItemPointerData& tid);

// Lets a cache keep the vector that was read last.
void keep_row(RowReader* reader, VectorCache* cache);

// Lets go of the page it reads from, so that nothing is pinned while a cursor sleeps.
void rest_row_reader(RowReader* reader);
void close_row_reader(RowReader* reader);

// What the operator of the metric orders by, up to a monotone function. NaN where that is NaN.
double exact_distance(Metric metric, const Vector* query, const Vector* row);
double exact_distance(Metric metric, const float* query, const float* row, size_t dims);

}  // namespace pgwarp
