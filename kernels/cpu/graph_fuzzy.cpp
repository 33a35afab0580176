// From distances to a fuzzy set (section 3.1 of the paper): the membership of a neighbor is
// exp(-(d - rho) / sigma), where rho is the nearest distance and sigma is such that the memberships
// of a node's k neighbors sum to log2(k + 1). The two memberships of a pair join as probabilities
// do: p + q - pq.

#include "kernels/cpu/key_numbers.h"
#include "kernels/cpu/pieces.h"
#include "kernels/graph_layout.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

namespace pgwarp {

namespace {

constexpr size_t nodes_in_piece = 1024;
constexpr size_t edges_in_piece = 1 << 16;

// Lists of links, one after the other. Threads write their links before anybody else touches the
// memory.
struct LinkLists {
    std::vector<size_t> begins;  // (nodes + 1)
    std::unique_ptr<FuzzyLink[]> links;

    FuzzyLink* begin(size_t node) const { return links.get() + begins[node]; }
    FuzzyLink* end(size_t node) const { return links.get() + begins[node + 1]; }
    // Where begins has the lengths of lists, each behind its place.
    void make_room() {
        std::partial_sum(begins.begin(), begins.end(), begins.begin());
        links = std::make_unique_for_overwrite<FuzzyLink[]>(begins.back());
    }
};

template <typename Use>
void for_nodes(Workers& workers, size_t count, const Use& use) {
    for_pieces(workers, count, nodes_in_piece, [&](size_t begin, size_t end, int) {
        for (size_t node = begin; node < end; ++node) use(node);
    });
}

bool is_nearer(const FuzzyLink& a, const FuzzyLink& b) {
    return a.weight != b.weight ? a.weight < b.weight : a.to < b.to;
}

// Lists of what put(node, link) gets from each(item, put), in no order.
template <typename Each>
LinkLists gather(Workers& workers, size_t nodes, size_t items, size_t items_in_piece,
                 const Each& each) {
    LinkLists lists = {std::vector<size_t>(nodes + 1), nullptr};
    const auto for_items = [&](const auto& put) {
        for_pieces(workers, items, items_in_piece, [&](size_t begin, size_t end, int) {
            for (size_t item = begin; item < end; ++item) each(item, put);
        });
    };
    for_items([&](size_t node, const FuzzyLink&) { add_to(lists.begins[node + 1], size_t{1}); });
    lists.make_room();
    std::vector<size_t> next(lists.begins.begin(), lists.begins.end() - 1);
    for_items([&](size_t node, const FuzzyLink& link) {
        lists.links[add_to(next[node], size_t{1})] = link;
    });
    return lists;
}

// The weight of a link is its distance, for now.
LinkLists gather_edges(Workers& workers, const KeyedEdges& edges, const KeyNumbers& numbers) {
    return gather(workers, numbers.keys().size(), edges.count, edges_in_piece,
                  [&](size_t i, const auto& put) {
                      if (edges.src[i] == edges.dst[i] || !std::isfinite(edges.distance[i])) return;
                      put(numbers(edges.src[i]), {numbers(edges.dst[i]), edges.distance[i]});
                  });
}

// The links of all nodes the other way round.
LinkLists reversed(Workers& workers, const LinkLists& lists) {
    const size_t count = lists.begins.size() - 1;
    return gather(workers, count, count, nodes_in_piece, [&](size_t node, const auto& put) {
        for (const FuzzyLink* link = lists.begin(node); link < lists.end(node); ++link)
            put(link->to, {static_cast<uint32_t>(node), link->weight});
    });
}

void sort_by_node(FuzzyLink* begin, FuzzyLink* end) {
    std::sort(begin, end, [](const FuzzyLink& a, const FuzzyLink& b) { return a.to < b.to; });
}

// sigma of a list: the sum of memberships falls as sigma does, so bisection finds it.
double bandwidth(const FuzzyLink* begin, const FuzzyLink* end, double nearest) {
    const auto count = static_cast<double>(end - begin);
    const double wanted = std::log2(count + 1);
    double low = 0, high = std::numeric_limits<double>::infinity(), sigma = 1;
    for (int step = 0; step < 64; ++step) {
        double sum = 0;
        for (const FuzzyLink* link = begin; link < end; ++link)
            sum += std::exp(-std::max(link->weight - nearest, 0.0) / sigma);
        if (std::abs(sum - wanted) < 1e-5) break;
        if (sum > wanted) {
            high = sigma;
            sigma = (low + high) / 2;
        } else {
            low = sigma;
            sigma = std::isinf(high) ? 2 * sigma : (low + high) / 2;
        }
    }
    // Neighbors at equal distances would want a sigma of 0.
    double mean = 0;
    for (const FuzzyLink* link = begin; link < end; ++link) mean += std::abs(link->weight);
    return std::max({sigma, 1e-3 * mean / count, 1e-30});
}

// Turns the distances of a list into memberships.
void weigh_list(FuzzyLink* begin, FuzzyLink* end) {
    if (begin == end) return;
    std::sort(begin, end, is_nearer);
    // Duplicates of the row tell nothing of how dense its neighborhood is.
    const FuzzyLink* other =
        std::find_if(begin, end, [](const FuzzyLink& link) { return link.weight != 0; });
    const double nearest = other < end ? other->weight : 0;
    const double sigma = bandwidth(begin, end, nearest);
    for (FuzzyLink* link = begin; link < end; ++link)
        link->weight =
            static_cast<float>(std::exp(-std::max(double{link->weight} - nearest, 0.0) / sigma));
}

// Calls use(to, weight) for the union of two lists that are sorted by node.
template <typename Use>
void unite(const LinkLists& forward, const LinkLists& back, size_t node, const Use& use) {
    const FuzzyLink *i = forward.begin(node), *j = back.begin(node);
    const FuzzyLink *i_end = forward.end(node), *j_end = back.end(node);
    while (i < i_end || j < j_end) {
        const uint32_t to = j == j_end || (i < i_end && i->to < j->to) ? i->to : j->to;
        float there = 0, here = 0;
        for (; i < i_end && i->to == to; ++i) there = std::max(there, i->weight);
        for (; j < j_end && j->to == to; ++j) here = std::max(here, j->weight);
        const float weight = there + here - there * here;
        if (weight > 0) use(to, weight);
    }
}

}  // namespace

size_t FuzzyGraph::memory(size_t edges, size_t nodes) {
    // Lists, those back and the union of both; or the union beside the block of vectors of the
    // start.
    const size_t uniting = (2 + 2) * sizeof(FuzzyLink) * edges + 5 * sizeof(size_t) * nodes;
    const size_t starting = 2 * sizeof(FuzzyLink) * edges + 128 * nodes;
    return std::max(uniting, starting) + 2 * sizeof(int64_t) * nodes;
}

FuzzyGraph::FuzzyGraph(Workers& workers, const KeyedEdges& edges, const Interrupts& interrupts) {
    LinkLists forward;
    {
        const KeyNumbers numbers(workers, edges, interrupts);
        forward = gather_edges(workers, edges, numbers);
        nodes_ = numbers.keys();
    }
    for_nodes(workers, count(), [&](size_t node) {
        weigh_list(forward.begin(node), forward.end(node));
        sort_by_node(forward.begin(node), forward.end(node));
    });
    const LinkLists back = reversed(workers, forward);
    for_nodes(workers, count(),
              [&](size_t node) { sort_by_node(back.begin(node), back.end(node)); });
    LinkLists both = {std::vector<size_t>(count() + 1), nullptr};
    for_nodes(workers, count(), [&](size_t node) {
        unite(forward, back, node, [&](uint32_t, float) { ++both.begins[node + 1]; });
    });
    both.make_room();
    for_nodes(workers, count(), [&](size_t node) {
        FuzzyLink* next = both.begin(node);
        unite(forward, back, node, [&](uint32_t to, float weight) { *next++ = {to, weight}; });
    });
    begins_ = std::move(both.begins);
    links_ = std::move(both.links);
}

}  // namespace pgwarp
