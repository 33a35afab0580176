#include "kernels/cpu/community_refine.h"

#include "kernels/random.h"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace pgwarp {

namespace {

// The paper's theta, in units of an edge: the lower, the less often a node joins any but the best.
constexpr double temperature = 0.01;

// Communities are refined independently: threads take one each, and write only what belongs to its
// nodes.
class Refining {
  public:
    Refining(const CommunityGraph& graph, const Objective& objective,
             const std::vector<uint32_t>& community)
        : graph_(graph),
          objective_(objective),
          community_(community),
          part_(graph.nodes()),
          totals_(graph.sizes),
          outside_(graph.nodes()),
          members_(graph.nodes(), 1) {
        std::iota(part_.begin(), part_.end(), 0);
    }

    struct Scratch {
        WeightSums sums;
        std::vector<uint32_t> order;
        struct Choice {
            uint32_t part;
            double gain;
            double weight;
        };
        std::vector<Choice> choices;
    };

    void refine(const uint32_t* nodes, size_t count, uint64_t seed, Scratch& scratch) {
        double total = 0;
        for (size_t i = 0; i < count; ++i) {
            total += graph_.sizes[nodes[i]];
            outside_[nodes[i]] = weight_inside(nodes[i]);
        }
        Random random(seed ^ (nodes[0] * 0xd1342543de82ef95ULL));
        scratch.order.assign(nodes, nodes + count);
        for (size_t i = count; i > 1; --i)
            std::swap(scratch.order[i - 1], scratch.order[random.below(i)]);
        for (const uint32_t node : scratch.order)
            if (members_[part_[node]] == 1 && is_connected(node, total))
                join(node, total, random, scratch);
    }

    std::vector<uint32_t> take_parts() { return std::move(part_); }

  private:
    // Of a node's edges to others of its community.
    double weight_inside(uint32_t node) const {
        double weight = 0;
        for (uint64_t l = graph_.begins[node]; l < graph_.begins[node + 1]; ++l)
            if (community_[graph_.links[l].to] == community_[node])
                weight += graph_.links[l].distance;
        return weight;
    }

    // Whether a part is well connected with the rest of its community.
    bool is_connected(uint32_t part, double total) const {
        return outside_[part] >= objective_.expected * totals_[part] * (total - totals_[part]);
    }

    void join(uint32_t node, double total, Random& random, Scratch& scratch) {
        const double size = graph_.sizes[node];
        scratch.sums.begin(graph_.begins[node + 1] - graph_.begins[node]);
        for (uint64_t l = graph_.begins[node]; l < graph_.begins[node + 1]; ++l)
            if (community_[graph_.links[l].to] == community_[node])
                scratch.sums.add(part_[graph_.links[l].to], graph_.links[l].distance);
        scratch.choices.assign(1, {node, 0, 0});  // it stays alone
        double best = 0;
        scratch.sums.each([&](uint32_t part, double weight) {
            const double gain = weight - objective_.expected * size * totals_[part];
            if (gain < 0 || !is_connected(part, total)) return;
            scratch.choices.push_back({part, gain, weight});
            best = std::max(best, gain);
        });
        const double unit = temperature * objective_.typical_weight;
        double sum = 0;
        for (const auto& choice : scratch.choices) sum += std::exp((choice.gain - best) / unit);
        double drawn = random.uniform() * sum;
        const Scratch::Choice* chosen = scratch.choices.data();
        for (const auto& choice : scratch.choices) {
            chosen = &choice;
            drawn -= std::exp((choice.gain - best) / unit);
            if (drawn < 0) break;
        }
        if (chosen->part != node) unite(node, *chosen);
    }

    void unite(uint32_t node, const Scratch::Choice& choice) {
        part_[node] = choice.part;
        totals_[choice.part] += graph_.sizes[node];
        outside_[choice.part] += outside_[node] - 2 * choice.weight;
        members_[node] = 0;
        ++members_[choice.part];
    }

    const CommunityGraph& graph_;
    const Objective& objective_;
    const std::vector<uint32_t>& community_;
    std::vector<uint32_t> part_;
    // By part:
    std::vector<double> totals_;
    std::vector<double> outside_;  // weight of its edges to other parts of the community
    std::vector<uint32_t> members_;
};

}  // namespace

std::vector<uint32_t> refine_communities(Workers& workers, const CommunityGraph& graph,
                                         const Objective& objective, uint64_t seed,
                                         const std::vector<uint32_t>& community) {
    const Groups groups = group_nodes(community, graph.nodes());
    // The largest first: threads that end with one do not wait long.
    std::vector<uint32_t> order;
    const auto size_of = [&](uint32_t c) { return groups.begins[c + 1] - groups.begins[c]; };
    for (uint32_t c = 0; c < groups.count(); ++c)
        if (size_of(c) > 1) order.push_back(c);
    std::stable_sort(order.begin(), order.end(),
                     [&](uint32_t a, uint32_t b) { return size_of(a) > size_of(b); });
    Refining refining(graph, objective, community);
    std::vector<Refining::Scratch> scratch(static_cast<size_t>(workers.threads()));
    // Pieces of about as many nodes: small communities are not worth a task each.
    constexpr size_t nodes_in_piece = 1024;
    std::vector<size_t> pieces(1, 0);
    for (size_t i = 0, nodes = 0; i < order.size(); ++i) {
        nodes += size_of(order[i]);
        if (nodes < nodes_in_piece && i + 1 < order.size()) continue;
        pieces.push_back(i + 1);
        nodes = 0;
    }
    workers.run(pieces.size() - 1, [&](size_t piece, int thread) {
        for (size_t i = pieces[piece]; i < pieces[piece + 1]; ++i)
            refining.refine(groups.nodes.data() + groups.begins[order[i]], size_of(order[i]), seed,
                            scratch[static_cast<size_t>(thread)]);
    });
    return refining.take_parts();
}

}  // namespace pgwarp
