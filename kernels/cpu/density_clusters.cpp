#include "kernels/density_clusters.h"

#include "kernels/cpu/condensed_tree.h"
#include "kernels/cpu/spanning_edges.h"

#include <algorithm>

namespace pgwarp {

std::vector<DensityLabel> density_clusters(Workers& workers, const NeighborGraph& graph,
                                           const DensityOptions& options,
                                           const Interrupts& interrupts) {
    const std::vector<float> core = core_distances(workers, graph, options.min_samples);
    const std::vector<SpanningEdge> edges = spanning_edges(workers, graph, core, interrupts);
    const CondensedTree tree =
        condensed_tree(edges, graph.vertices(), options.min_cluster_size, interrupts);
    return label_vertices(tree, select_clusters(tree, options.selection));
}

size_t density_memory(size_t vertices, size_t edges) {
    return std::max(spanning_memory(vertices, edges),
                    vertices * sizeof(SpanningEdge) + condensed_memory(vertices)) +
           vertices * sizeof(float);
}

}  // namespace pgwarp
