#include "kernels/communities.h"

#include "kernels/cpu/community_graph.h"
#include "kernels/cpu/community_moves.h"
#include "kernels/cpu/community_refine.h"
#include "kernels/cpu/pieces.h"
#include "kernels/random.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <utility>

namespace pgwarp {

namespace {

constexpr size_t vertices_in_piece = 1 << 12;

// --- weights

// (vertices): the distance to the seventh neighbor, or to the last of fewer.
std::vector<float> scales(Workers& workers, const NeighborGraph& graph) {
    constexpr size_t rank = 7;
    std::vector<float> scale(graph.vertices());
    for_pieces(workers, scale.size(), vertices_in_piece, [&](size_t begin, size_t end, int) {
        std::vector<float> distances;
        for (size_t v = begin; v < end; ++v) {
            distances.clear();
            for (uint64_t i = graph.begins[v]; i < graph.begins[v + 1]; ++i)
                distances.push_back(graph.links[i].distance);
            if (distances.empty()) continue;
            const auto wanted = distances.begin() + (std::min(rank, distances.size()) - 1);
            std::nth_element(distances.begin(), wanted, distances.end());
            scale[v] = *wanted;
        }
    });
    return scale;
}

float gaussian_weight(double distance, double scale_a, double scale_b) {
    if (distance == 0) return 1;
    if (std::isinf(distance)) return 0;
    // The limit, where the other scale may be 0: of these the product is NaN.
    if (std::isinf(scale_a) || std::isinf(scale_b)) return 1;
    return static_cast<float>(std::exp(-distance * distance / (scale_a * scale_b)));
}

// The graph with weights in place of distances.
CommunityGraph weighted_graph(Workers& workers, const NeighborGraph& graph,
                              const CommunityOptions& options) {
    CommunityGraph first = {graph.begins, graph.links, std::vector<double>(graph.vertices(), 1)};
    const std::vector<float> scale =
        options.weights == EdgeWeights::gaussian ? scales(workers, graph) : std::vector<float>();
    for_pieces(workers, first.nodes(), vertices_in_piece, [&](size_t begin, size_t end, int) {
        for (size_t v = begin; v < end; ++v) {
            double sum = 0;
            for (uint64_t l = first.begins[v]; l < first.begins[v + 1]; ++l) {
                NeighborLink& link = first.links[l];
                if (options.weights == EdgeWeights::uniform) link.distance = 1;
                if (options.weights == EdgeWeights::gaussian)
                    link.distance = gaussian_weight(link.distance, scale[v], scale[link.to]);
                sum += link.distance;
            }
            if (options.quality == CommunityQuality::modularity) first.sizes[v] = sum;
        }
    });
    return first;
}

// --- levels

// Renumbers groups, whose numbers are below `range`, from 0 on, in the order of their first nodes.
// Returns how many there are.
size_t number_groups(std::vector<uint32_t>& group_of, size_t range) {
    std::vector<uint32_t> numbers(range, unset);
    uint32_t next = 0;
    for (uint32_t& group : group_of) {
        if (numbers[group] == unset) numbers[group] = next++;
        group = numbers[group];
    }
    return next;
}

class Leiden {
  public:
    Leiden(Workers& workers, CommunityGraph graph, const CommunityOptions& options,
           const Interrupts& interrupts)
        : workers_(workers),
          graph_(std::move(graph)),
          interrupts_(interrupts),
          random_(options.seed),
          community_(graph_.nodes()) {
        std::iota(community_.begin(), community_.end(), 0);
        for (const NeighborLink& link : graph_.links) weight_ += link.distance;
        const double resolution = options.resolution;
        const bool is_modularity = options.quality == CommunityQuality::modularity;
        objective_.expected =
            is_modularity ? resolution / std::max(weight_, least_weight) : resolution;
        objective_.typical_weight =
            weight_ / static_cast<double>(std::max<size_t>(graph_.links.size(), 1));
    }

    void iterate() {
        std::vector<uint32_t> node_of(graph_.nodes());  // of a vertex, in this level's graph
        std::iota(node_of.begin(), node_of.end(), 0);
        std::vector<uint32_t> community = community_;
        CommunityGraph above;
        const CommunityGraph* level = &graph_;
        while (true) {
            move_nodes(workers_, *level, objective_, random_.next(), community, interrupts_);
            std::vector<uint32_t> part =
                refine_communities(workers_, *level, objective_, random_.next(), community);
            const size_t parts = number_groups(part, part.size());
            if (parts == level->nodes()) break;
            const Groups groups = group_nodes(part, parts);
            CommunityGraph next = aggregate(workers_, *level, groups, part);
            std::vector<uint32_t> next_community(parts);
            for (size_t p = 0; p < parts; ++p)
                next_community[p] = community[groups.nodes[groups.begins[p]]];
            number_groups(next_community, level->nodes());
            community = std::move(next_community);
            for (uint32_t& node : node_of) node = part[node];
            above = std::move(next);
            level = &above;
        }
        for (size_t v = 0; v < node_of.size(); ++v) community_[v] = community[node_of[v]];
        number_groups(community_, community_.size());
    }

    // The share of all weight that is inside communities, less what is expected there.
    double quality() const {
        if (weight_ == 0) return 0;
        std::vector<double> totals(graph_.nodes());
        double inside = 0;
        for (size_t v = 0; v < graph_.nodes(); ++v) {
            totals[community_[v]] += graph_.sizes[v];
            for (uint64_t l = graph_.begins[v]; l < graph_.begins[v + 1]; ++l)
                if (community_[graph_.links[l].to] == community_[v])
                    inside += graph_.links[l].distance;
        }
        double expected = 0;
        for (const double total : totals) expected += total * total;
        return (inside - objective_.expected * expected) / weight_;
    }

    const std::vector<uint32_t>& community() const { return community_; }

  private:
    static constexpr double least_weight = std::numeric_limits<double>::min();

    Workers& workers_;
    CommunityGraph graph_;
    Interrupts interrupts_;
    Random random_;
    Objective objective_ = {};
    double weight_ = 0;                // of all edges, both ways
    std::vector<uint32_t> community_;  // (vertices)
};

// Renumbers communities: the largest first. `of` has them in the order of their smallest vertices.
uint32_t number_by_size(std::vector<uint32_t>& of) {
    const uint32_t count = of.empty() ? 0 : 1 + *std::max_element(of.begin(), of.end());
    std::vector<uint32_t> sizes(count), order(count), numbers(count);
    for (const uint32_t community : of) ++sizes[community];
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(),
                     [&](uint32_t a, uint32_t b) { return sizes[a] > sizes[b]; });
    for (uint32_t i = 0; i < count; ++i) numbers[order[i]] = i;
    for (uint32_t& community : of) community = numbers[community];
    return count;
}

}  // namespace

Communities find_communities(Workers& workers, const NeighborGraph& graph,
                             const CommunityOptions& options, const Interrupts& interrupts) {
    // What counts as better, as a share of all weight.
    constexpr double least_progress = 1e-9;
    Leiden leiden(workers, weighted_graph(workers, graph, options), options, interrupts);
    double quality = leiden.quality();
    for (uint32_t i = 0; options.iterations == 0 || i < options.iterations; ++i) {
        leiden.iterate();
        const double before = std::exchange(quality, leiden.quality());
        // Weights of the user's may overflow: a quality that is NaN ends this, too.
        if (!(quality - before >= least_progress)) break;
    }
    Communities found = {leiden.community(), 0, quality};
    found.count = number_by_size(found.of);
    return found;
}

size_t communities_memory(size_t vertices, size_t edges) {
    // The weighted graph; the next one, in pieces and whole, has at most as many links. Of a vertex
    // there are sizes, communities, totals, proposals and parts.
    constexpr size_t vertex_bytes = 176;
    return edges * 6 * sizeof(NeighborLink) + vertices * vertex_bytes;
}

}  // namespace pgwarp
