// The exact graph: all pairs, each once.
#pragma once

#include "kernels/knn_graph.h"
#include "kernels/workers.h"

namespace pgwarp {

void exact_graph(Workers& workers, const GraphRows& rows, uint32_t degree, Edge* lists,
                 const GraphProgress& progress);

}  // namespace pgwarp
