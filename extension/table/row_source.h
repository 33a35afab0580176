// Where the rows of a TableReader come from: scans of a table and its children (member_scan.h), a
// query (query_rows.h), or, in a parallel worker, ranges of blocks (block_scan.h).
#pragma once

#include "extension/types/vector_type.h"

extern "C" {
#include "storage/itemptr.h"
#include "utils/memutils.h"
}

namespace pgwarp {

// A row; valid until the next one is read.
struct SourceRow {
    const varlena* vector;  // plain: see VectorType. Null: the vector is null.
    Datum key;
    bool key_is_null;
    ItemPointerData tid;  // of a scanned row; a query sets none
    // Of ReadColumns::values; only a query reads them.
    const Datum* values;
    const bool* value_is_null;
};

// Lives in the memory context that its TableReader has. It needs no destructor: rewind() releases
// what does not lie there.
class RowSource {
  public:
    // False at the end. Reports an error where the table was changed while it was read.
    virtual bool next(SourceRow* row) = 0;
    // Ends the pass over the rows. The next row is the first one.
    virtual void rewind() = 0;

  protected:
    ~RowSource() = default;
};

// Leaves a plain value where it lies. Reads any other into `row_context`, which it resets before.
template <typename Read>
const varlena* plain_value(Datum datum, MemoryContext row_context, Read read) {
    if (VectorType::is_plain(datum)) return reinterpret_cast<varlena*>(DatumGetPointer(datum));
    MemoryContextReset(row_context);
    const MemoryContext before = MemoryContextSwitchTo(row_context);
    const varlena* value = read(datum);
    MemoryContextSwitchTo(before);
    return value;
}

}  // namespace pgwarp
