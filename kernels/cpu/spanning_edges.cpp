// Boruvka's algorithm. In every round each component takes its least outgoing edge; that halves the
// components at least. Threads pass over the edges, and one thread unites the components: there are
// far fewer.

#include "kernels/cpu/spanning_edges.h"

#include "kernels/cpu/pieces.h"

#include <algorithm>
#include <atomic>
#include <bit>
#include <cmath>
#include <limits>
#include <numeric>
#include <stdexcept>

namespace pgwarp {

namespace {

constexpr size_t vertices_in_piece = 1 << 12;
constexpr size_t edges_in_piece = 1 << 15;

// Weight and place of a link: an order of edges without ties, so that no cycle can close. Weights
// are not negative, so that their bits are in their order.
using EdgeOrder = uint64_t;
constexpr EdgeOrder no_edge = std::numeric_limits<EdgeOrder>::max();

EdgeOrder edge_order(float weight, uint64_t link) {
    return static_cast<EdgeOrder>(std::bit_cast<uint32_t>(weight)) << 32 | link;
}

// An edge between two components, which are named by vertices.
struct Candidate {
    EdgeOrder order;
    uint32_t a;
    uint32_t b;
};

class Forest {
  public:
    Forest(Workers& workers, const NeighborGraph& graph, const std::vector<float>& core)
        : workers_(workers),
          graph_(graph),
          core_(core),
          parents_(graph.vertices()),
          best_(graph.vertices()),
          roots_(graph.vertices()) {
        std::iota(parents_.begin(), parents_.end(), 0);
        std::iota(roots_.begin(), roots_.end(), 0);
        collect_candidates();
    }

    // False: nothing is left to connect.
    bool round() {
        for (const uint32_t root : roots_) best_[root] = no_edge;
        find_best();
        return unite_roots();
    }

    std::vector<SpanningEdge> edges() {
        std::sort(taken_.begin(), taken_.end());
        std::vector<SpanningEdge> edges(taken_.size());
        for_pieces(workers_, edges.size(), vertices_in_piece, [&](size_t begin, size_t end, int) {
            for (size_t i = begin; i < end; ++i) {
                const uint64_t link = taken_[i] & 0xffffffff;
                edges[i] = {source_of(link), graph_.links[link].to,
                            std::bit_cast<float>(static_cast<uint32_t>(taken_[i] >> 32))};
            }
        });
        return edges;
    }

  private:
    // The vertex whose list has this link.
    uint32_t source_of(uint64_t link) const {
        return static_cast<uint32_t>(
            std::upper_bound(graph_.begins.begin(), graph_.begins.end(), link) -
            graph_.begins.begin() - 1);
    }

    // Calls use(candidate) for the edges of these vertices, each once, from its smaller end.
    template <typename Use>
    void each_edge(size_t begin, size_t end, const Use& use) const {
        for (size_t v = begin; v < end; ++v)
            for (uint64_t i = graph_.begins[v]; i < graph_.begins[v + 1]; ++i) {
                const NeighborLink& link = graph_.links[i];
                if (link.to < v) continue;
                // A negative zero would be the greatest by its bits.
                const float weight = std::max({core_[v], core_[link.to], link.distance}) + 0.0f;
                if (std::isinf(weight)) continue;
                use(Candidate{edge_order(weight, i), static_cast<uint32_t>(v), link.to});
            }
    }

    void collect_candidates() {
        const size_t vertices = graph_.vertices();
        if (graph_.links.size() > std::numeric_limits<uint32_t>::max())
            throw std::runtime_error("the graph has too many edges");
        std::vector<size_t> begins(vertices / vertices_in_piece + 2);
        for_pieces(workers_, vertices, vertices_in_piece, [&](size_t begin, size_t end, int) {
            size_t count = 0;
            each_edge(begin, end, [&](const Candidate&) { ++count; });
            begins[begin / vertices_in_piece + 1] = count;
        });
        std::partial_sum(begins.begin(), begins.end(), begins.begin());
        candidates_.resize(begins.back());
        left_.assign(candidates_.size() / edges_in_piece + 1, edges_in_piece);
        for_pieces(workers_, vertices, vertices_in_piece, [&](size_t begin, size_t end, int) {
            size_t at = begins[begin / vertices_in_piece];
            each_edge(begin, end, [&](const Candidate& edge) { candidates_[at++] = edge; });
        });
    }

    void offer(uint32_t root, EdgeOrder order) {
        std::atomic_ref<EdgeOrder> best(best_[root]);
        EdgeOrder before = best.load(std::memory_order_relaxed);
        while (order < before &&
               !best.compare_exchange_weak(before, order, std::memory_order_relaxed)) {
        }
    }

    // The least outgoing edge of every root. Edges inside a component are dropped: each piece keeps
    // the rest at its beginning.
    void find_best() {
        for_pieces(workers_, candidates_.size(), edges_in_piece,
                   [&](size_t begin, size_t end, int) {
                       size_t& left = left_[begin / edges_in_piece];
                       end = std::min(end, begin + left);
                       size_t kept = begin;
                       for (size_t i = begin; i < end; ++i) {
                           Candidate edge = candidates_[i];
                           edge.a = parents_[edge.a];
                           edge.b = parents_[edge.b];
                           if (edge.a == edge.b) continue;
                           offer(edge.a, edge.order);
                           offer(edge.b, edge.order);
                           candidates_[kept++] = edge;
                       }
                       left = kept - begin;
                   });
    }

    uint32_t root_of(uint32_t vertex) {
        while (parents_[vertex] != vertex) vertex = parents_[vertex] = parents_[parents_[vertex]];
        return vertex;
    }

    bool unite_roots() {
        std::vector<uint32_t> sources(roots_.size());
        for_pieces(workers_, roots_.size(), vertices_in_piece, [&](size_t begin, size_t end, int) {
            for (size_t i = begin; i < end; ++i)
                if (best_[roots_[i]] != no_edge)
                    sources[i] = source_of(best_[roots_[i]] & 0xffffffff);
        });
        const size_t before = taken_.size();
        for (size_t i = 0; i < roots_.size(); ++i) {
            const EdgeOrder order = best_[roots_[i]];
            if (order == no_edge) continue;
            const uint32_t a = root_of(sources[i]);
            const uint32_t b = root_of(graph_.links[order & 0xffffffff].to);
            if (a == b) continue;  // the other end has taken the same edge
            parents_[std::max(a, b)] = std::min(a, b);
            taken_.push_back(order);
        }
        // Candidates name roots of this round: one step must lead to those of the next.
        for (const uint32_t root : roots_) parents_[root] = root_of(root);
        std::erase_if(roots_, [&](uint32_t root) {
            return parents_[root] != root || best_[root] == no_edge;
        });
        return taken_.size() > before;
    }

    Workers& workers_;
    const NeighborGraph& graph_;
    const std::vector<float>& core_;
    std::vector<uint32_t> parents_;  // (vertices), union-find
    std::vector<EdgeOrder> best_;    // (vertices), of roots
    std::vector<uint32_t> roots_;    // of components that have outgoing edges
    std::vector<Candidate> candidates_;
    std::vector<size_t> left_;  // candidates left in each piece
    std::vector<EdgeOrder> taken_;
};

}  // namespace

std::vector<float> core_distances(Workers& workers, const NeighborGraph& graph,
                                  uint32_t min_samples) {
    std::vector<float> core(graph.vertices(), 0);
    if (min_samples <= 1) return core;
    for_pieces(workers, core.size(), vertices_in_piece, [&](size_t begin, size_t end, int) {
        std::vector<float> distances;
        for (size_t v = begin; v < end; ++v) {
            distances.clear();
            for (uint64_t i = graph.begins[v]; i < graph.begins[v + 1]; ++i)
                distances.push_back(graph.links[i].distance);
            if (distances.size() < min_samples - 1) {
                core[v] = std::numeric_limits<float>::infinity();
                continue;
            }
            const auto wanted = distances.begin() + (min_samples - 2);
            std::nth_element(distances.begin(), wanted, distances.end());
            core[v] = *wanted;
        }
    });
    return core;
}

std::vector<SpanningEdge> spanning_edges(Workers& workers, const NeighborGraph& graph,
                                         const std::vector<float>& core,
                                         const Interrupts& interrupts) {
    Forest forest(workers, graph, core);
    do interrupts.check();
    while (forest.round());
    return forest.edges();
}

size_t spanning_memory(size_t vertices, size_t edges) {
    return edges * sizeof(Candidate) +
           vertices * (3 * sizeof(uint32_t) + 2 * sizeof(EdgeOrder) + sizeof(SpanningEdge));
}

}  // namespace pgwarp
