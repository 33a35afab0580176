// A worker's share of a build's parallel scan, with one lock per page.
#pragma once

#include "extension/compat.h"

extern "C" {
#include "access/tableam.h"
#include "nodes/execnodes.h"
#include "utils/rel.h"
}

namespace pgwarp {

// PostgreSQL's build scan locks a page twice for each row. On a heap page where every row is
// clearly live or dead, one share lock for the page is enough. Pages whose rows belong to
// transactions in progress, or may be visible to an old snapshot, are left to PostgreSQL's scan.
bool may_scan_pages(Relation heap, const IndexInfo* info);
// As table_index_build_scan() with this parallel scan.
double scan_pages(Relation heap, Relation index, IndexInfo* info, ParallelTableScanDesc parallel,
                  IndexBuildCallback callback, void* state);

}  // namespace pgwarp
