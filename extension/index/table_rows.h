// Rows of an index's table, for estimates.
#pragma once

#include "extension/compat.h"

namespace pgwarp {

// By the catalog; 0: unknown. For a table that was never analyzed, what its index had when it was
// built: from 18 on, CREATE INDEX leaves the table's figure alone where autovacuum is off.
inline double table_rows(Relation heap, Relation index) {
    const double rows = heap->rd_rel->reltuples;
    return rows > 0 ? rows : Max(index->rd_rel->reltuples, 0.0f);
}

}  // namespace pgwarp
