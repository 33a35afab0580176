// The builder of a graph: this process's CPU, or a device of the session.
#pragma once

#include "kernels/knn_graph.h"
#include "extension/compat.h"
#include "extension/device/session_device.h"

namespace pgwarp {

struct GraphMaker {
    GraphBuilder* builder;
    bool device;
    SessionDevice* session;
    class FallbackGraphBuilder* fallback;  // the builder, if the CPU may replace a failed device
};

// Chooses by pgwarp.build_executor, as CREATE INDEX does. `work` is an estimate in multiplications:
// little work does not pay for opening a device. `threads` is for the CPU. The maker is closed with
// the current memory context, or by close_graph_maker().
GraphMaker open_graph_maker(double work, int threads);
// Warns if a device failed meanwhile.
void close_graph_maker(GraphMaker* maker);

}  // namespace pgwarp
