#include "kernels/neighbor_graph.h"

#include "kernels/cpu/key_numbers.h"
#include "kernels/cpu/pieces.h"

#include <algorithm>
#include <limits>
#include <numeric>

namespace pgwarp {

namespace {

constexpr size_t edges_in_piece = 1 << 16;
constexpr size_t vertices_in_piece = 1 << 12;
constexpr size_t vertices_between_polls = 1 << 16;

// Edges of a piece, with vertex numbers. What an edge touches lies anywhere in memory, and an
// atomic operation waits for it: so some edges are looked up first, and prefetched for those that
// follow.
struct SomeEdges {
    static constexpr size_t room = 128;
    size_t first;
    size_t count;
    uint32_t a[room];
    uint32_t b[room];
};

// Calls use(some) for all edges of a piece.
template <typename Use>
void each_some(const KeyedEdges& edges, const KeyNumbers& numbers, size_t begin, size_t end,
               const Use& use) {
    SomeEdges some;
    for (some.first = begin; some.first < end; some.first += some.count) {
        some.count = std::min(SomeEdges::room, end - some.first);
        for (size_t i = 0; i < some.count; ++i) {
            some.a[i] = numbers(edges.src[some.first + i]);
            some.b[i] = numbers(edges.dst[some.first + i]);
        }
        use(some);
    }
}

uint32_t count_lists(Workers& workers, const KeyedEdges& edges, const KeyNumbers& numbers,
                     NeighborGraph& graph) {
    const size_t vertices = graph.vertices();
    std::vector<uint64_t> lists(vertices);
    graph.begins.assign(vertices + 1, 0);
    for_pieces(workers, edges.count, edges_in_piece, [&](size_t begin, size_t end, int) {
        each_some(edges, numbers, begin, end, [&](const SomeEdges& some) {
            for (size_t i = 0; i < some.count; ++i)
                __builtin_prefetch(&graph.begins[some.b[i] + 1], 1);
            for (size_t i = 0; i < some.count; ++i) {
                if (some.a[i] == some.b[i]) continue;
                add_to(lists[some.a[i]], uint64_t{1});
                add_to(graph.begins[some.b[i] + 1], uint64_t{1});
            }
        });
    });
    for (size_t v = 0; v < vertices; ++v) graph.begins[v + 1] += lists[v];
    std::partial_sum(graph.begins.begin(), graph.begins.end(), graph.begins.begin());
    return vertices == 0 ? 0 : static_cast<uint32_t>(*std::max_element(lists.begin(), lists.end()));
}

void place_links(Workers& workers, const KeyedEdges& edges, const KeyNumbers& numbers,
                 NeighborGraph& graph) {
    graph.links.resize(graph.begins.back());
    std::vector<uint64_t> next(graph.begins.begin(), graph.begins.end() - 1);
    for_pieces(workers, edges.count, edges_in_piece, [&](size_t begin, size_t end, int) {
        uint64_t places[2 * SomeEdges::room];
        each_some(edges, numbers, begin, end, [&](const SomeEdges& some) {
            for (size_t i = 0; i < some.count; ++i) __builtin_prefetch(&next[some.b[i]], 1);
            for (size_t i = 0; i < some.count; ++i) {
                if (some.a[i] == some.b[i]) continue;
                places[2 * i] = add_to(next[some.a[i]], uint64_t{1});
                places[2 * i + 1] = add_to(next[some.b[i]], uint64_t{1});
                __builtin_prefetch(&graph.links[places[2 * i]], 1);
                __builtin_prefetch(&graph.links[places[2 * i + 1]], 1);
            }
            for (size_t i = 0; i < some.count; ++i) {
                if (some.a[i] == some.b[i]) continue;
                const float given = edges.distance[some.first + i];
                const float distance =
                    given == given ? given : std::numeric_limits<float>::infinity();
                graph.links[places[2 * i]] = {some.b[i], distance};
                graph.links[places[2 * i + 1]] = {some.a[i], distance};
            }
        });
    });
}

// Sorts each list and keeps one of repeated links; then closes the gaps.
void unite_links(Workers& workers, RepeatedEdge repeated, NeighborGraph& graph,
                 const Interrupts& interrupts) {
    const size_t vertices = graph.vertices();
    std::vector<uint32_t> kept(vertices);
    const auto before = [repeated](const NeighborLink& a, const NeighborLink& b) {
        if (a.to != b.to) return a.to < b.to;
        return repeated == RepeatedEdge::smallest ? a.distance < b.distance
                                                  : a.distance > b.distance;
    };
    for_pieces(workers, vertices, vertices_in_piece, [&](size_t begin, size_t end, int) {
        for (size_t v = begin; v < end; ++v) {
            NeighborLink* first = graph.links.data() + graph.begins[v];
            NeighborLink* last = graph.links.data() + graph.begins[v + 1];
            std::sort(first, last, before);
            const NeighborLink* unique_end = std::unique(
                first, last,
                [](const NeighborLink& a, const NeighborLink& b) { return a.to == b.to; });
            kept[v] = static_cast<uint32_t>(unique_end - first);
        }
    });
    uint64_t filled = 0;
    for (size_t v = 0; v < vertices; ++v) {
        if (v % vertices_between_polls == 0) interrupts.check();
        const NeighborLink* from = graph.links.data() + graph.begins[v];
        std::copy(from, from + kept[v], graph.links.data() + filled);
        graph.begins[v] = filled;
        filled += kept[v];
    }
    graph.begins[vertices] = filled;
    graph.links.resize(filled);
}

}  // namespace

size_t NeighborGraph::memory(size_t vertices, size_t edges) {
    // Links, and the numbers of keys; for each vertex its key, where its list begins and ends.
    return edges * (2 * sizeof(NeighborLink) + 2 * sizeof(uint32_t)) +
           vertices * (sizeof(int64_t) + 3 * sizeof(uint64_t));
}

NeighborGraph make_neighbor_graph(Workers& workers, const KeyedEdges& edges, RepeatedEdge repeated,
                                  const Interrupts& interrupts) {
    NeighborGraph graph = {};
    if (edges.count == 0) {
        graph.begins.assign(1, 0);
        return graph;
    }
    KeyNumbers numbers(workers, edges, interrupts);
    graph.keys = numbers.keys();
    graph.longest_list = count_lists(workers, edges, numbers, graph);
    place_links(workers, edges, numbers, graph);
    unite_links(workers, repeated, graph, interrupts);
    return graph;
}

}  // namespace pgwarp
