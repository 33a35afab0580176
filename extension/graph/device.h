// The builder of a graph: this process's CPU, or the session's devices.
#pragma once

#include "kernels/knn_graph.h"
#include "extension/compat.h"
#include "extension/device/session_device.h"

namespace pgwarp {

struct GraphMaker {
    GraphBuilder* builder;
    bool device;
    SessionDevice* session;
    // The builder is one of these, if the CPU may replace a failed device, or there are several:
    class FallbackGraphBuilder* fallback;
    class GraphBuilderGroup* group;
};

// Rows that a builder has room for; at least two parts of the smallest useful size, also where
// others hold the device's memory at the moment.
Size rows_on_device(const GraphBuilder& builder, uint32 dims, const DescentOptions& options);

// Chooses by pgwarp.build_executor, as CREATE INDEX does. `work` is an estimate in multiplications:
// little work does not pay for opening a device. `threads` is for the CPU. The maker is closed with
// the current memory context, or by close_graph_maker().
GraphMaker open_graph_maker(double work, int threads);
// Warns if a device failed meanwhile.
void close_graph_maker(GraphMaker* maker);

}  // namespace pgwarp
