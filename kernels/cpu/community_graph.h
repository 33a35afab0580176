// The graphs that the Leiden algorithm works on: the given one, and those whose nodes are
// communities of the one before.
#pragma once

#include "kernels/common.h"
#include "kernels/neighbor_graph.h"
#include "kernels/workers.h"

#include <vector>

namespace pgwarp {

// Weights of a node's edges, added up for each community that they lead to. One for each thread.
class WeightSums {
  public:
    // Room for as many communities as the node has edges.
    void begin(size_t edges) {
        for (const uint32_t place : places_) communities_[place] = unset;
        places_.clear();
        if (2 * edges <= communities_.size()) return;
        size_t room = 64;
        while (room < 2 * edges) room *= 2;
        communities_.assign(room, unset);
        weights_.resize(room);
    }
    void add(uint32_t community, double weight) {
        const uint32_t place = place_of(community);
        if (communities_[place] == unset) {
            communities_[place] = community;
            weights_[place] = 0;
            places_.push_back(place);
        }
        weights_[place] += weight;
    }
    double of(uint32_t community) const {
        const uint32_t place = place_of(community);
        return communities_[place] == unset ? 0 : weights_[place];
    }
    // In the order in which communities were first added.
    template <typename Use>
    void each(const Use& use) const {
        for (const uint32_t place : places_) use(communities_[place], weights_[place]);
    }

  private:
    uint32_t place_of(uint32_t community) const {
        const size_t mask = communities_.size() - 1;
        size_t at = (community * 0x9e3779b1u) >> 7;
        while (communities_[at & mask] != unset && communities_[at & mask] != community) ++at;
        return static_cast<uint32_t>(at & mask);
    }
    std::vector<uint32_t> communities_ = std::vector<uint32_t>(64, unset);
    std::vector<double> weights_ = std::vector<double>(64);
    std::vector<uint32_t> places_;
};

struct CommunityGraph {
    std::vector<uint64_t> begins;     // (nodes + 1)
    std::vector<NeighborLink> links;  // distance: the weight
    // (nodes): the sum of weights of edges (modularity) or the number of vertices (cpm)
    std::vector<double> sizes;

    size_t nodes() const { return sizes.size(); }
};

// A community may have this weight for each pair of sizes: `resolution`, scaled for modularity.
struct Objective {
    double expected;
    double typical_weight;  // the mean of an edge
};

// Nodes of each group, grouped: those of group g are nodes[begins[g]] to nodes[begins[g + 1]], in
// their order.
struct Groups {
    std::vector<uint64_t> begins;
    std::vector<uint32_t> nodes;

    size_t count() const { return begins.size() - 1; }
};
Groups group_nodes(const std::vector<uint32_t>& group_of, size_t groups);

// The graph whose nodes are the groups.
CommunityGraph aggregate(Workers& workers, const CommunityGraph& graph, const Groups& groups,
                         const std::vector<uint32_t>& group_of);

}  // namespace pgwarp
