// Reads the indexed vectors of table rows by TID, and computes exact distances.
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/common.h"
#include "extension/types/vector_type.h"
#include "extension/types/vector_cache.h"

extern "C" {
#include "access/tableam.h"
#include "executor/tuptable.h"
#include "storage/itemptr.h"
#include "utils/rel.h"
#include "utils/snapshot.h"
}

namespace pgwarp {

// A reader lives in the memory context that is current when it is opened.
struct RowReader;
RowReader* open_row_reader(Relation heap, Relation index, Snapshot snapshot);

// A condition on rows, checked before their vectors are read; and how many it was checked on.
struct RowFilter {
    bool (*passes)(void* state, TupleTableSlot* row);  // null: there is none
    void* state;
    double seen;
    double passed;
};
void set_row_filter(RowReader* reader, const RowFilter& filter);
const RowFilter& row_filter(const RowReader* reader);  // null: there is none

// The indexed vector of the visible version of a row, valid until the next call. None: no version
// is visible to the snapshot, the filter rejects it, or the value is null.
StoredVector read_row(RowReader* reader, ItemPointerData tid);

// The same in two steps, for a caller that rejects rows before the filter sees them: whether a
// version is visible; the filter and the vector of the row that find_row() found.
// `is_dead` is set to whether no version is visible to anybody any more, or ever will be.
bool find_row(RowReader* reader, ItemPointerData tid, bool* is_dead = nullptr);
StoredVector read_found_row(RowReader* reader);

// The vector that was read last as floats, valid until the next is read.
VectorView floats_of_row(RowReader* reader);

// Whether a version of the row is visible to the snapshot; does not read its vector.
bool sees_row(RowReader* reader, ItemPointerData tid, bool* is_dead = nullptr);

// Of the row that read_row() or find_row() found last: the TID of the visible version, which may
// differ from the index entry's TID (HOT), and the value of a column.
ItemPointerData place_of_row(const RowReader* reader);
TupleTableSlot* slot_of_row(const RowReader* reader);
// Memory that the next read_row() frees.
MemoryContext row_context(const RowReader* reader);
// The values of all index columns, valid until the next read_row(). Evaluates the index's
// expressions once a row: the vector may be the value of one.
struct IndexValues {
    const Datum* values;
    const bool* nulls;
};
IndexValues index_values(RowReader* reader);
Datum value_of_row(RowReader* reader, AttrNumber attribute, bool* is_null);

// Prefetches for a row that will be read. Each stage uses what the one before fetched: the hint of
// the row's buffer, then the page's header and item pointer, then the tuple. Before these, `read`
// asks the kernel for a page that is not in shared buffers.
enum class PrefetchStage { hint, read, page, tuple };
// How many rows before its turn a row's page is worth asking for; 0: it is not.
Size rows_to_read_ahead(const RowReader* reader);
void prefetch_row(RowReader* reader, ItemPointerData tid, PrefetchStage stage);

// Pins the page of a row that was read before in the executor's `fetch`, by the reader's hint.
void pin_for_fetch(const RowReader* reader, IndexFetchTableData* fetch, const ItemPointerData& tid);

// Stores the vector that was read last in a cache.
void keep_row(RowReader* reader, VectorCache* cache);

// Unpins the reader's page, so that no pin is held between two fetches of a cursor.
void rest_row_reader(RowReader* reader);
void close_row_reader(RowReader* reader);

// A monotone function of the metric operator's distance. NaN where that distance is NaN.
double exact_distance(Metric metric, const VectorView& query, const StoredVector& row);
// The query has the row's dimensions.
double exact_distance(Metric metric, const float* query, const StoredVector& row);

// Distances as rows are ranked by, in the order of the operator's, where NaN comes after infinity:
// NaN is infinite, and infinity is the greatest finite number.
inline double ranked_distance(double exact) {
    using Limits = std::numeric_limits<double>;
    return std::isnan(exact) ? Limits::infinity() : std::min(exact, Limits::max());
}
inline double exact_of_ranked(double ranked) {
    using Limits = std::numeric_limits<double>;
    if (std::isinf(ranked)) return ranked > 0 ? Limits::quiet_NaN() : ranked;
    return ranked < Limits::max() ? ranked : Limits::infinity();
}
// Whether the row comes after all that have a finite distance.
inline bool ranks_last(double ranked) {
    return !(ranked < std::numeric_limits<double>::max());
}

}  // namespace pgwarp
