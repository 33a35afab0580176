#include "kernels/cpu/community_moves.h"

#include "kernels/cpu/pieces.h"
#include "kernels/random.h"

#include <algorithm>
#include <atomic>
#include <numeric>

namespace pgwarp {

namespace {

// Batches of a round: with more, fewer neighbors want to move at the same time; with fewer, threads
// wait less often.
constexpr size_t batches = 64;
constexpr size_t nodes_in_piece = 256;

class Moving {
  public:
    Moving(Workers& workers, const CommunityGraph& graph, const Objective& objective,
           std::vector<uint32_t>& community)
        : workers_(workers),
          graph_(graph),
          objective_(objective),
          community_(community),
          totals_(graph.nodes()),
          members_(graph.nodes()),
          active_(graph.nodes(), 1),
          positions_(graph.nodes(), unset),
          sums_(static_cast<size_t>(workers.threads())) {
        for (size_t node = 0; node < graph.nodes(); ++node) {
            totals_[community[node]] += graph.sizes[node];
            ++members_[community[node]];
        }
        for (size_t c = graph.nodes(); c-- > 0;)
            if (members_[c] == 0) empty_.push_back(static_cast<uint32_t>(c));
        least_gain_ = 1e-9 * objective.typical_weight;
    }

    // Every active node may move once. A batch's first node that wants to move does, so that rounds
    // come to an end. False: none is active any more.
    bool round(uint64_t seed) {
        const std::vector<size_t> ends = draw_order(seed);
        if (order_.empty()) return false;
        proposals_.resize(order_.size());
        size_t begin = 0;
        for (const size_t end : ends) {
            if (begin < end) run_batch(begin, end);
            begin = end;
        }
        return true;
    }

  private:
    struct Proposal {
        double weight_to;   // of edges to that community
        double weight_own;  // of edges to the node's own one
        uint32_t to;        // unset: a community of its own
        bool wanted;
        bool is_first;  // of its neighbors in the batch
        bool moves;
    };

    // Active nodes, in batches by chance. Returns where each batch ends.
    std::vector<size_t> draw_order(uint64_t seed) {
        const auto batch_of = [seed](size_t node) {
            return Random(seed ^ (node * 0xd1342543de82ef95ULL)).below(batches);
        };
        std::vector<size_t> ends(batches), next(batches);
        for (size_t node = 0; node < active_.size(); ++node)
            if (active_[node]) ++ends[batch_of(node)];
        std::partial_sum(ends.begin(), ends.end(), ends.begin());
        std::copy(ends.begin(), ends.end() - 1, next.begin() + 1);
        order_.resize(ends.back());
        for (size_t node = 0; node < active_.size(); ++node)
            if (active_[node]) order_[next[batch_of(node)]++] = static_cast<uint32_t>(node);
        return ends;
    }

    void run_batch(size_t begin, size_t end) {
        const auto each = [&](const auto& use) {
            for_pieces(workers_, end - begin, nodes_in_piece,
                       [&](size_t from, size_t to, int thread) {
                           for (size_t i = begin + from; i < begin + to; ++i) use(i, thread);
                       });
        };
        each([&](size_t i, int thread) {
            prefetch(i);
            propose(i, sums_[static_cast<size_t>(thread)]);
        });
        each([&](size_t i, int) {
            if (proposals_[i].wanted) proposals_[i].is_first = is_first_of_neighbors(i);
        });
        for (size_t i = begin; i < end; ++i)
            if (proposals_[i].wanted) proposals_[i].moves = proposals_[i].is_first && move(i);
        each([&](size_t i, int) {
            positions_[order_[i]] = unset;
            if (proposals_[i].moves)
                activate_neighbors(order_[i]);
            else if (proposals_[i].wanted)
                std::atomic_ref(active_[order_[i]]).store(1, std::memory_order_relaxed);
        });
    }

    // What the quality gains by a node of this size and weight of edges in a community of this
    // total.
    double value(double weight, double size, double total) const {
        return weight - objective_.expected * size * total;
    }

    // Nodes of a batch lie anywhere in memory: what the next ones need is fetched in two steps,
    // first their edges, then the communities these lead to.
    void prefetch(size_t i) const {
        constexpr size_t edges_ahead = 12, communities_ahead = 6, most_edges = 64;
        if (i + edges_ahead < order_.size()) {
            const uint64_t begin = graph_.begins[order_[i + edges_ahead]];
            const uint64_t end = graph_.begins[order_[i + edges_ahead] + 1];
            constexpr uint64_t links_in_line = 64 / sizeof(NeighborLink);
            for (uint64_t l = begin; l < std::min(end, begin + most_edges); l += links_in_line)
                __builtin_prefetch(&graph_.links[l]);
        }
        if (i + communities_ahead < order_.size()) {
            const uint64_t begin = graph_.begins[order_[i + communities_ahead]];
            const uint64_t end = graph_.begins[order_[i + communities_ahead] + 1];
            for (uint64_t l = begin; l < std::min(end, begin + most_edges); ++l)
                __builtin_prefetch(&community_[graph_.links[l].to]);
        }
    }

    void propose(size_t i, WeightSums& sum) {
        const uint32_t node = order_[i];
        const uint32_t own = community_[node];
        const double size = graph_.sizes[node];
        active_[node] = 0;
        sum.begin(graph_.begins[node + 1] - graph_.begins[node]);
        for (uint64_t l = graph_.begins[node]; l < graph_.begins[node + 1]; ++l)
            sum.add(community_[graph_.links[l].to], graph_.links[l].distance);
        const double weight_own = sum.of(own);
        const double stay = value(weight_own, size, totals_[own] - size);
        Proposal best = {weight_own, weight_own, own, false, false, false};
        double best_value = stay;
        sum.each([&](uint32_t other, double weight) {
            const double here = value(weight, size, totals_[other]);
            if (other == own || here < best_value) return;
            if (here == best_value && (best.to == own || other > best.to)) return;
            best_value = here;
            best = {weight, weight_own, other, true, false, false};
        });
        if (best_value < 0 && members_[own] > 1) {
            best_value = 0;
            best = {0, weight_own, unset, true, false, false};
        }
        best.wanted = best.wanted && best_value - stay > least_gain_;
        proposals_[i] = best;
        positions_[node] = best.wanted ? static_cast<uint32_t>(i) : unset;
    }

    bool is_first_of_neighbors(size_t i) const {
        const uint32_t node = order_[i];
        for (uint64_t l = graph_.begins[node]; l < graph_.begins[node + 1]; ++l)
            if (positions_[graph_.links[l].to] < i) return false;
        return true;
    }

    // Totals may have changed since the proposal, but neighbors have not moved. False: the move
    // would gain nothing any more.
    bool move(size_t i) {
        const Proposal& proposal = proposals_[i];
        const uint32_t node = order_[i], own = community_[node];
        const double size = graph_.sizes[node];
        const double total = proposal.to == unset ? 0 : totals_[proposal.to];
        const double gain = value(proposal.weight_to, size, total) -
                            value(proposal.weight_own, size, totals_[own] - size);
        if (gain <= least_gain_) return false;
        uint32_t to = proposal.to;
        if (to == unset) {  // there is an empty one: the node's own has others
            to = empty_.back();
            empty_.pop_back();
        }
        totals_[own] -= size;
        if (--members_[own] == 0) {
            totals_[own] = 0;
            empty_.push_back(own);
        }
        totals_[to] += size;
        ++members_[to];
        community_[node] = to;
        return true;
    }

    void activate_neighbors(uint32_t node) {
        for (uint64_t l = graph_.begins[node]; l < graph_.begins[node + 1]; ++l) {
            const uint32_t other = graph_.links[l].to;
            if (community_[other] != community_[node])
                std::atomic_ref(active_[other]).store(1, std::memory_order_relaxed);
        }
    }

    Workers& workers_;
    const CommunityGraph& graph_;
    const Objective& objective_;
    std::vector<uint32_t>& community_;
    std::vector<double> totals_;       // of sizes, by community
    std::vector<uint32_t> members_;    // by community
    std::vector<uint32_t> empty_;      // communities without members
    std::vector<uint8_t> active_;      // (nodes)
    std::vector<uint32_t> positions_;  // (nodes): in order_, of a batch's nodes that want to move
    std::vector<uint32_t> order_;
    std::vector<Proposal> proposals_;  // (order)
    std::vector<WeightSums> sums_;
    double least_gain_;
};

}  // namespace

void move_nodes(Workers& workers, const CommunityGraph& graph, const Objective& objective,
                uint64_t seed, std::vector<uint32_t>& community, const Interrupts& interrupts) {
    Moving moving(workers, graph, objective, community);
    Random random(seed);
    do interrupts.check();
    while (moving.round(random.next()));
}

}  // namespace pgwarp
