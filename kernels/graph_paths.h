// Paths through a graph whose nodes are keys: the smoothest path, and connected components.
#pragma once

#include "kernels/common.h"
#include "kernels/interrupts.h"

#include <vector>

namespace pgwarp {

// Of the number of a vertex, a community, a position or a level: there is none.
inline constexpr uint32_t unset = 0xffffffff;

// Each array is (count). A NaN distance counts as infinite.
struct KeyedEdges {
    const int64_t* src;
    const int64_t* dst;
    const float* distance;
    size_t count;
};

struct PathStep {
    int64_t node;
    float distance;  // from the node before it; 0 for the first
};

struct NodeComponent {
    int64_t node;
    int64_t component;  // the smallest node in it
};

class PathGraph {
  public:
    // Edges lead both ways unless `directed`. All functions poll the interrupts.
    PathGraph(const KeyedEdges& edges, bool directed, const Interrupts& interrupts);

    // Bytes it takes beside the edges.
    static size_t memory(size_t edges, bool directed);

    bool has(int64_t node) const;

    // The path whose largest edge is smallest (equation 19); ties go to the fewest steps, then to
    // the smallest sum. Empty where there is no path. Both nodes must be in the graph.
    std::vector<PathStep> smoothest_path(int64_t from, int64_t to) const;

    // Sorted by node. Edges count in both directions.
    std::vector<NodeComponent> components() const;

  private:
    struct Link {
        uint32_t to;
        float distance;
    };
    uint32_t number_of(int64_t node) const;
    float smallest_bottleneck(uint32_t from, uint32_t to) const;

    Interrupts interrupts_;
    std::vector<int64_t> nodes_;  // sorted
    std::vector<size_t> begins_;  // (nodes + 1)
    std::vector<Link> links_;
};

}  // namespace pgwarp
