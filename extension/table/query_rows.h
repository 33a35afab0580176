// The rows of a table by a query: of views, foreign tables, tables that another extension plans,
// tables with policies for the caller, virtual generated columns, and where columns of any type are
// read beside the vectors.
#pragma once

#include "extension/table/columns.h"
#include "extension/table/row_source.h"

extern "C" {
#include "access/htup.h"
#include "access/tupdesc.h"
#include "utils/portal.h"
#include "utils/snapshot.h"
}

namespace pgwarp {

class QueryRows final : public RowSource {
  public:
    QueryRows(const ReadColumns& columns, Snapshot snapshot);

    bool next(SourceRow* row) override;
    void rewind() override;

  private:
    void open_portal();
    Portal find_portal() const;
    void fetch();

    MemoryContext context_ = CurrentMemoryContext;
    MemoryContext row_context_;
    const ReadColumns& columns_;
    Snapshot snapshot_;
    const char* query_;
    char* portal_ = nullptr;  // name of the open portal, or null

    // A batch of rows, in fetch_context_.
    MemoryContext fetch_context_;
    TupleDesc fetched_columns_ = nullptr;
    HeapTuple* fetched_ = nullptr;
    uint64 fetched_count_ = 0;
    uint64 fetched_next_ = 0;
    bool finished_ = false;
    // Of the row returned last.
    Datum* values_;
    bool* value_is_null_;
};

}  // namespace pgwarp
