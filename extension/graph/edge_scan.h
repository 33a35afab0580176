// All edges of a graph: straight from the pages of its table where that is possible, as a query
// would copy each row several times.
#pragma once

#include "extension/graph/table.h"

namespace pgwarp {

// Reads all edges with the caller's rights. Reports an error for a column that is missing or of
// another type, and for a null.
void scan_graph_table(Oid graph, KeyNames* names, const EdgeUse& use);

}  // namespace pgwarp
