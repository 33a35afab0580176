// Making graphs of sets, with what they have in memory or part by part.
#pragma once

#include "extension/graph/job.h"

namespace pgwarp {

// The graph of a set that is in memory or in a file. One that is in memory may go to a file, where
// the builder has no room for all of it.
void build_graph(const GraphJob& job, GraphSet* set, bool exact, const EdgeSink& sink);

}  // namespace pgwarp
