// Who makes a graph: this process's CPU, or a device that it opens for the time.
#pragma once

#include "kernels/knn_graph.h"
#include "extension/compat.h"

namespace pgwarp {

struct GraphMaker {
    GraphBuilder* builder;
    bool device;
    struct GraphDevice* owned;
};

// By pgwarp.build_executor, as builds do. `work` is about how many multiplications it takes: little
// work does not wait for a device. `threads` is for the CPU. What it opens ends with the current
// memory context, or with close_graph_maker().
GraphMaker open_graph_maker(double work, int threads);
// Warns where a device failed on the way.
void close_graph_maker(GraphMaker* maker);

}  // namespace pgwarp
