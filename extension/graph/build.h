// Building the graph of a set, in memory or by parts.
#pragma once

#include "extension/graph/job.h"

namespace pgwarp {

// Builds the graph of a set that is in memory or in a file. A set in memory is spilled to a file if
// the builder has no room for all rows.
void build_graph(const GraphJob& job, GraphSet* set, bool exact, const EdgeSink& sink);

}  // namespace pgwarp
