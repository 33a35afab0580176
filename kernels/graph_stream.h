// Paths through a graph of which only the nodes fit into memory: the caller streams its edges once
// or several times, in any order. Results equal those of graph_paths.h with all edges in memory.
#pragma once

#include "kernels/common.h"
#include "kernels/graph_paths.h"

#include <vector>

namespace pgwarp {

// Maps node keys to dense numbers, in key order.
class NodeNumbers {
  public:
    // `most` is below 2^31.
    explicit NodeNumbers(size_t most) : most_(most) {}

    // Called for every node, any number of times. False: there are more than `most` nodes.
    bool add(int64_t node);
    // Called before any function below. False as for add().
    bool finish();

    size_t count() const { return nodes_.size(); }
    int64_t node(uint32_t number) const { return nodes_[number]; }
    // The node must be present.
    uint32_t number_of(int64_t node) const;
    bool has(int64_t node) const;

    // Bytes of memory for each node while nodes are added.
    static constexpr size_t node_bytes = 3 * sizeof(int64_t);

  private:
    bool sort();

    size_t most_;
    size_t sorted_ = 0;
    std::vector<int64_t> nodes_;  // the first sorted_ are sorted and without duplicates
};

struct NumberedEdge {
    uint32_t src;
    uint32_t dst;
    float distance;  // never NaN
};
static_assert(sizeof(NumberedEdge) == 12);

// NaN counts as infinite.
float edge_order(float distance);

// Union-find. The smallest number of a set is its root.
class NodeSets {
  public:
    explicit NodeSets(size_t nodes);

    uint32_t root_of(uint32_t node);
    // False: both were in one set already.
    bool unite(uint32_t a, uint32_t b);
    void part();  // makes every node a set of its own again

  private:
    std::vector<uint32_t> parents_;
};

// Keeps the edges of a minimum spanning forest: in an undirected graph the smoothest path between
// two nodes goes along them. Has room for at least twice as many edges as nodes.
class SpanningForest {
  public:
    SpanningForest(size_t nodes, size_t room);

    void add(const NumberedEdge& edge);

    // The largest edge of the smoothest path; -infinity where both are one node; NaN where there is
    // no path.
    float bottleneck(uint32_t from, uint32_t to);

    static constexpr size_t memory(size_t nodes, size_t room) {
        return nodes * sizeof(uint32_t) + room * sizeof(NumberedEdge);
    }

  private:
    void reduce();

    size_t room_;
    NodeSets sets_;
    std::vector<NumberedEdge> edges_;
};

// The bottleneck of a directed graph: passes over all edges until nothing changes.
class DirectedBottleneck {
  public:
    DirectedBottleneck(size_t nodes, uint32_t from, uint32_t to);

    void add(const NumberedEdge& edge);
    // Ends a pass over all edges. False: another pass would change nothing.
    bool end_pass();
    float bottleneck() const { return reached_[to_]; }

  private:
    uint32_t to_;
    bool changed_ = false;
    std::vector<float> reached_;
};

// The shortest path along the edges that are added: the fewest steps, then the smallest sum. The
// caller adds only edges up to the bottleneck, and all of them for every level.
class LevelSearch {
  public:
    LevelSearch(size_t nodes, uint32_t from, uint32_t to, bool directed);

    void add(const NumberedEdge& edge);
    // False: the path is found, or no path exists.
    bool end_level();
    std::vector<PathStep> path(const NodeNumbers& numbers) const;

    static constexpr size_t node_bytes = 24;

  private:
    struct Arrival {
        double sum;
        uint32_t before;
        uint32_t level;
        float distance;
    };
    static_assert(sizeof(Arrival) == node_bytes);
    void step(uint32_t from, uint32_t to, float distance);

    uint32_t to_;
    bool directed_;
    uint32_t level_ = 1;
    bool reached_ = false;  // whether this level reached a new node
    bool found_;
    std::vector<Arrival> arrivals_;
};

}  // namespace pgwarp
