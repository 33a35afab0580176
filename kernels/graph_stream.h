// Ways through a graph of which only the nodes fit into memory: its edges come by, once or several
// times, in any order. What comes out is what graph_paths.h finds with all of them in memory.
#pragma once

#include "kernels/common.h"
#include "kernels/graph_paths.h"

#include <vector>

namespace pgwarp {

// Keys of nodes as numbers, in their order.
class NodeNumbers {
  public:
    // `most` is below 2^31.
    explicit NodeNumbers(size_t most) : most_(most) {}

    // All that come, any number of times. False: there are more than `most`.
    bool add(int64_t node);
    // Before anything below is asked.
    bool finish();

    size_t count() const { return nodes_.size(); }
    int64_t node(uint32_t number) const { return nodes_[number]; }
    // It is there.
    uint32_t number_of(int64_t node) const;
    bool has(int64_t node) const;

    // A node's share of memory while they come.
    static constexpr size_t node_bytes = 3 * sizeof(int64_t);

  private:
    bool sort();

    size_t most_;
    size_t sorted_ = 0;
    std::vector<int64_t> nodes_;  // the first sorted_ of them are, without duplicates
};

struct NumberedEdge {
    uint32_t src;
    uint32_t dst;
    float distance;  // a number
};
static_assert(sizeof(NumberedEdge) == 12);

// What is not a number counts as infinite.
float edge_order(float distance);

// The smallest number is a set's root.
class NodeSets {
  public:
    explicit NodeSets(size_t nodes);

    uint32_t root_of(uint32_t node);
    // False: they were together before.
    bool unite(uint32_t a, uint32_t b);
    void part();  // all of them again

  private:
    std::vector<uint32_t> parents_;
};

// Keeps those edges that a minimal spanning forest has: the smoothest way between two nodes goes
// along them, where edges lead both ways. Room for twice as many edges as there are nodes, at
// least.
class SpanningForest {
  public:
    SpanningForest(size_t nodes, size_t room);

    void add(const NumberedEdge& edge);

    // The largest edge of the smoothest path; below every number where they are one node; not a
    // number where there is no path.
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

// The same where edges lead one way: over and over, until nothing changes.
class DirectedBottleneck {
  public:
    DirectedBottleneck(size_t nodes, uint32_t from, uint32_t to);

    void add(const NumberedEdge& edge);
    // All edges have come. False: another time would change nothing.
    bool end_pass();
    float bottleneck() const { return reached_[to_]; }

  private:
    uint32_t to_;
    bool changed_ = false;
    std::vector<float> reached_;
};

// The path along edges up to a limit: of those with the fewest steps the one with the smallest sum.
// All edges come by for every step.
class LevelSearch {
  public:
    LevelSearch(size_t nodes, uint32_t from, uint32_t to, bool directed);

    void add(const NumberedEdge& edge);
    // False: the path is found, or there is none.
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
    bool reached_ = false;  // anybody on this level
    bool found_;
    std::vector<Arrival> arrivals_;
};

}  // namespace pgwarp
