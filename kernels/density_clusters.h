// Clusters by density over a graph of neighbors: HDBSCAN* (Campello, Moulavi, Zimek, Sander:
// "Hierarchical density estimates for data clustering, visualization, and outlier detection",
// 2015).
//
// What is exact: the result is that of the minimum spanning tree of mutual reachability over the
// edges of the graph. Two rows that are not neighbors in the graph have no distance here. So a row
// of the full tree that needs such an edge is reached around it, at a greater distance or, from
// another component of the graph, at an infinite one: components part at the root.
//
// Edges of equal length are removed together, as the paper has it, so that the result does not
// depend on the order of edges.
#pragma once

#include "kernels/common.h"
#include "kernels/interrupts.h"
#include "kernels/neighbor_graph.h"
#include "kernels/workers.h"

#include <vector>

namespace pgwarp {

// Which clusters of the condensed tree are chosen: those with the greatest excess of mass, or its
// leaves.
enum class ClusterSelection { excess_of_mass, leaves };

struct DensityOptions {
    uint32_t min_cluster_size;  // at least 2
    // A vertex's core distance is that to its neighbor of this number, itself the first. At
    // least 1.
    uint32_t min_samples;
    ClusterSelection selection;
};

struct DensityLabel {
    int32_t label;        // from 0 on, the largest cluster first; -1: noise
    float probability;    // of belonging to it: 1 at its densest, 0 for noise
    float outlier_score;  // GLOSH: 0 at the densest, towards 1
};

// (vertices). Distances must not be negative.
std::vector<DensityLabel> density_clusters(Workers& workers, const NeighborGraph& graph,
                                           const DensityOptions& options,
                                           const Interrupts& interrupts);

// Bytes beside the graph.
size_t density_memory(size_t vertices, size_t edges);

}  // namespace pgwarp
