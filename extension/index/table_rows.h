// Rows of an index's table, for estimates.
#pragma once

#include "extension/compat.h"

extern "C" {
#include "storage/bufmgr.h"
#include "utils/rel.h"
}

namespace pgwarp {

// By the catalog; 0: unknown. For a table that was never analyzed, what its index had when it was
// built: from 18 on, CREATE INDEX leaves the table's figure alone where autovacuum is off.
inline double table_rows(Relation heap, Relation index) {
    const double rows = heap->rd_rel->reltuples;
    return rows > 0 ? rows : Max(index->rd_rel->reltuples, 0.0f);
}

// The same, as the table is now: by its size.
inline double current_rows(Relation heap, Relation index) {
    const double rows = table_rows(heap, index);
    const auto pages = static_cast<double>(heap->rd_rel->relpages);
    return pages > 0 ? rows * RelationGetNumberOfBlocks(heap) / pages : rows;
}

}  // namespace pgwarp
