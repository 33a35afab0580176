// A layout of a k-NN graph: two coordinates a node, near each other where rows are.
//
// UMAP (McInnes, Healy, Melville 2018, arXiv:1802.03426): distances become memberships of a fuzzy
// set, relative to how dense the neighborhood of each node is; coordinates start from eigenvectors
// of the graph, and move by stochastic gradient descent until the fuzzy set of the picture
// resembles that of the rows.
//
// The same edges, options and seed give the same layout, on any number of threads and in any order
// of the edges: each node moves against the positions that all nodes had before a round.
#pragma once

#include "kernels/common.h"
#include "kernels/graph_paths.h"
#include "kernels/workers.h"

#include <memory>
#include <vector>

namespace pgwarp {

// The curve 1 / (1 + a d^(2b)): how near two points of the picture are that lie d apart.
struct LayoutCurve {
    double a;
    double b;
};

// The curve nearest to one that is 1 up to min_dist, and falls as exp(-(d - min_dist) / spread)
// from there. Wants 0 <= min_dist <= spread, and spread > 0.
LayoutCurve fit_layout_curve(double min_dist, double spread);

struct LayoutOptions {
    double min_dist = 0.1;
    double spread = 1;
    uint32_t epochs = 0;  // 0: default_epochs()
    uint64_t seed = 0;

    // As many as UMAP takes: large sets have more edges to an epoch.
    static uint32_t default_epochs(size_t nodes) { return nodes <= 10000 ? 500 : 200; }
};

struct LayoutPoint {
    float x;
    float y;
};

// A membership of the fuzzy set: symmetric, so both ends have it.
struct FuzzyLink {
    uint32_t to;
    float weight;  // (0, 1]
};

// The fuzzy set of a graph. Nodes are numbered in the order of their keys.
class FuzzyGraph {
  public:
    // A distance that is NaN or infinite makes no link, nor does an edge from a node to itself. Of
    // edges that are there twice the nearer counts.
    FuzzyGraph(Workers& workers, const KeyedEdges& edges, const Interrupts& interrupts);

    // Bytes at most beside the edges, and what layout() takes.
    static size_t memory(size_t edges, size_t nodes);

    size_t count() const { return nodes_.size(); }
    int64_t node(size_t number) const { return nodes_[number]; }
    const FuzzyLink* begin(size_t number) const { return links_.get() + begins_[number]; }
    const FuzzyLink* end(size_t number) const { return links_.get() + begins_[number + 1]; }

  private:
    std::vector<int64_t> nodes_;  // sorted
    std::vector<size_t> begins_;  // (nodes + 1)
    std::unique_ptr<FuzzyLink[]> links_;
};

// Where points start: of every connected component its smoothest two eigenvectors, components side
// by side. (nodes)
std::vector<LayoutPoint> spectral_layout(Workers& workers, const FuzzyGraph& graph, uint64_t seed,
                                         const Interrupts& interrupts);

// Moves points that have a start. Takes the default number of epochs where options have none.
void optimize_layout(Workers& workers, const FuzzyGraph& graph, const LayoutOptions& options,
                     std::vector<LayoutPoint>& points, const Interrupts& interrupts);

// Both. (nodes)
std::vector<LayoutPoint> layout(Workers& workers, const FuzzyGraph& graph,
                                const LayoutOptions& options, const Interrupts& interrupts);

}  // namespace pgwarp
