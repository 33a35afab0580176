// A worker's share of a parallel scan for a build, page by page.
#pragma once

#include "extension/compat.h"

extern "C" {
#include "access/tableam.h"
#include "nodes/execnodes.h"
#include "utils/rel.h"
}

namespace pgwarp {

// A build's scan takes a page's lock twice for each row. On a heap's page where every row is either
// live or dead there is nothing to decide, and once a page is enough. Other pages, of which another
// transaction may yet want something, are left to PostgreSQL's scan.
bool may_scan_pages(Relation heap, const IndexInfo* info);
// As table_index_build_scan() with this parallel scan.
double scan_pages(Relation heap, Relation index, IndexInfo* info, ParallelTableScanDesc parallel,
                  IndexBuildCallback callback, void* state);

}  // namespace pgwarp
