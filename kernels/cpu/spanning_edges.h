// The minimum spanning forest of mutual reachability over a graph of neighbors.
#pragma once

#include "kernels/common.h"
#include "kernels/interrupts.h"
#include "kernels/neighbor_graph.h"
#include "kernels/workers.h"

#include <vector>

namespace pgwarp {

// (vertices): the distance to the neighbor number min_samples, counting the vertex itself; infinite
// where the vertex has fewer neighbors.
std::vector<float> core_distances(Workers& workers, const NeighborGraph& graph,
                                  uint32_t min_samples);

struct SpanningEdge {
    uint32_t a;
    uint32_t b;
    float weight;  // the greatest of both core distances and the edge's own; finite
};

// Sorted by weight. One edge fewer than vertices for each component; edges of infinite weight
// connect nothing.
std::vector<SpanningEdge> spanning_edges(Workers& workers, const NeighborGraph& graph,
                                         const std::vector<float>& core,
                                         const Interrupts& interrupts);

size_t spanning_memory(size_t vertices, size_t edges);

}  // namespace pgwarp
