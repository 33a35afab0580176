// The hierarchy of clusters by density, from the edges of a spanning forest.
#pragma once

#include "kernels/common.h"
#include "kernels/cpu/spanning_edges.h"
#include "kernels/density_clusters.h"
#include "kernels/interrupts.h"

#include <vector>

namespace pgwarp {

// A cluster of at least min_cluster_size vertices: from the density at which it parted from a
// sibling (birth) to that at which it parts itself, or has lost its last vertices. A density,
// lambda, is one divided by a distance.
struct CondensedCluster {
    uint32_t parent;
    uint32_t size;
    double birth;
    double death;      // of its last vertices, or of itself
    double stability;  // the sum over its vertices of how long they were in it
    bool is_leaf;
};

struct CondensedTree {
    // A parent stands before its children; the first is the root.
    std::vector<CondensedCluster> clusters;
    std::vector<uint32_t> cluster;  // (vertices): the one that a vertex falls out of
    std::vector<double> lambda;     // (vertices): the density at which it does
};

// `edges` are sorted by weight.
CondensedTree condensed_tree(const std::vector<SpanningEdge>& edges, size_t vertices,
                             uint32_t min_cluster_size, const Interrupts& interrupts);

// (clusters): which are chosen. None is inside another; the root is none.
std::vector<bool> select_clusters(const CondensedTree& tree, ClusterSelection selection);

std::vector<DensityLabel> label_vertices(const CondensedTree& tree,
                                         const std::vector<bool>& selected);

size_t condensed_memory(size_t vertices);

}  // namespace pgwarp
