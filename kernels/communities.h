// Communities of a graph, by the Leiden algorithm (Traag, Waltman, van Eck: "From Louvain to
// Leiden: guaranteeing well-connected communities", 2019).
//
// Vertices move in batches: threads find the best community for each vertex of a batch, and of
// neighbors that want to move at the same time only one does. So every move that is made raises the
// quality, and the result depends on graph, options and seed only, not on the number of threads.
#pragma once

#include "kernels/common.h"
#include "kernels/interrupts.h"
#include "kernels/neighbor_graph.h"
#include "kernels/workers.h"

#include <vector>

namespace pgwarp {

// What communities maximise: the weight inside them, less `resolution` times what is expected.
// Modularity expects it by the weights of the vertices' edges, as in a random graph with the same;
// the constant Potts model (cpm) expects a weight of one for each pair of vertices.
enum class CommunityQuality { modularity, cpm };

enum class EdgeWeights {
    uniform,  // every edge counts one
    // exp(-d^2 / (s_a s_b)), where s is the distance to the seventh neighbor (Zelnik-Manor, Perona:
    // "Self-tuning spectral clustering", 2004)
    gaussian,
    given,  // what the graph has as distance
};

struct CommunityOptions {
    CommunityQuality quality;
    double resolution;  // positive
    EdgeWeights weights;
    uint64_t seed;
    uint32_t
        iterations;  // each begins with the communities of the one before; 0: until none is better
};

struct Communities {
    // (vertices): from 0 on, the largest community first, of equal ones that with the smallest
    // vertex
    std::vector<uint32_t> of;
    uint32_t count;
    double quality;  // modularity as usual, between -1 and 1; cpm as a share of all weight
};

// Distances must not be negative, except for uniform weights.
Communities find_communities(Workers& workers, const NeighborGraph& graph,
                             const CommunityOptions& options, const Interrupts& interrupts);

// Bytes beside the graph.
size_t communities_memory(size_t vertices, size_t edges);

}  // namespace pgwarp
