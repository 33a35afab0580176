// A graph of neighbors in memory, for clusters and communities: vertices are numbered in the order
// of their keys, and edges lead both ways.
#pragma once

#include "kernels/common.h"
#include "kernels/graph_paths.h"
#include "kernels/interrupts.h"
#include "kernels/workers.h"

#include <vector>

namespace pgwarp {

struct NeighborLink {
    uint32_t to;
    float distance;
};
static_assert(sizeof(NeighborLink) == 8);

struct NeighborGraph {
    std::vector<int64_t> keys;     // (vertices), sorted
    std::vector<uint64_t> begins;  // (vertices + 1), into links
    // Sorted by `to` for each vertex, none twice, none to the vertex itself.
    std::vector<NeighborLink> links;
    uint32_t longest_list;  // most edges of one source, as they were given

    size_t vertices() const { return keys.size(); }
    // Bytes beside the given edges while it is made.
    static size_t memory(size_t vertices, size_t edges);
};

// What becomes of an edge that is given more than once, or in both directions.
enum class RepeatedEdge { smallest, greatest };

// The result does not depend on the order of the edges. NaN counts as infinite.
NeighborGraph make_neighbor_graph(Workers& workers, const KeyedEdges& edges, RepeatedEdge repeated,
                                  const Interrupts& interrupts);

}  // namespace pgwarp
