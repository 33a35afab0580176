// The exact graph: all pairs, each once.
#pragma once

#include "kernels/knn_graph.h"
#include "kernels/workers.h"

namespace pgwarp {

// Lists keep their contents. With a border, pairs on the same side of it are skipped. The lists are
// those of the rows of `part`.
inline constexpr size_t no_border = 0;
void exact_graph(Workers& workers, const GraphRows& rows, size_t border, const RowSpan& part,
                 uint32_t degree, Edge* lists, const GraphProgress& progress);

}  // namespace pgwarp
