// Values that a scan has read, for functions of pgvector that read them again.
//
// ORDER BY v <-> q makes the executor compute the distance of every row that it returns. Our own
// functions look into the scan's cache for values that are in TOAST (vector_cache.h). pgvector's
// cannot: so they are called with the value in place of the pointer to it.
#pragma once

#include "extension/compat.h"

extern "C" {
#include "nodes/execnodes.h"
}

namespace pgwarp {

// For the distances among a scan's columns and conditions, before its first row.
void pass_cached_values(IndexScanState* scan);

}  // namespace pgwarp
