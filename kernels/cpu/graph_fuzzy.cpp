// From distances to a fuzzy set (section 3.1 of the paper): the membership of a neighbor is
// exp(-(d - rho) / sigma), where rho is the nearest distance and sigma is such that the memberships
// of a node's k neighbors sum to log2(k + 1). The two memberships of a pair join as probabilities
// do: p + q - pq.

#include "kernels/graph_layout.h"

#include "kernels/polling_order.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <stdexcept>

namespace pgwarp {

namespace {

constexpr size_t nodes_a_task = 1024;
constexpr size_t steps_between_polls = 8192;

// Lists of links, one after the other.
struct LinkLists {
    std::vector<size_t> begins;  // (nodes + 1)
    std::vector<FuzzyLink> links;
};

template <typename Use>
void for_nodes(Workers& workers, size_t count, const Use& use) {
    workers.run((count + nodes_a_task - 1) / nodes_a_task, [&](size_t task, int) {
        const size_t end = std::min(count, (task + 1) * nodes_a_task);
        for (size_t i = task * nodes_a_task; i < end; ++i) use(i);
    });
}

void sum_begins(std::vector<size_t>& begins) {
    for (size_t i = 0; i + 1 < begins.size(); ++i) begins[i + 1] += begins[i];
}

std::vector<int64_t> number_nodes(const KeyedEdges& edges, const Interrupts& interrupts) {
    std::vector<int64_t> nodes;
    nodes.reserve(2 * edges.count);
    nodes.insert(nodes.end(), edges.src, edges.src + edges.count);
    nodes.insert(nodes.end(), edges.dst, edges.dst + edges.count);
    PollingOrder order(interrupts, std::less<int64_t>());
    std::sort(nodes.begin(), nodes.end(), std::ref(order));
    interrupts.check();
    nodes.erase(std::unique(nodes.begin(), nodes.end()), nodes.end());
    if (nodes.size() >= std::numeric_limits<uint32_t>::max())
        throw std::runtime_error("the graph has too many nodes");
    nodes.shrink_to_fit();
    return nodes;
}

// The weight of a link is its distance, for now.
LinkLists gather_lists(const KeyedEdges& edges, const std::vector<int64_t>& nodes,
                       const Interrupts& interrupts) {
    const auto number_of = [&](int64_t key) {
        return static_cast<uint32_t>(std::lower_bound(nodes.begin(), nodes.end(), key) -
                                     nodes.begin());
    };
    const auto counts = [&](size_t i) {
        return edges.src[i] != edges.dst[i] && std::isfinite(edges.distance[i]);
    };
    std::vector<uint32_t> sources(edges.count);
    LinkLists lists;
    lists.begins.assign(nodes.size() + 1, 0);
    for (size_t i = 0; i < edges.count; ++i) {
        if (i % steps_between_polls == 0) interrupts.check();
        // Edges of a table mostly stand list by list.
        sources[i] =
            i > 0 && edges.src[i] == edges.src[i - 1] ? sources[i - 1] : number_of(edges.src[i]);
        if (counts(i)) ++lists.begins[sources[i] + 1];
    }
    sum_begins(lists.begins);
    lists.links.resize(lists.begins.back());
    std::vector<size_t> next(lists.begins.begin(), lists.begins.end() - 1);
    for (size_t i = 0; i < edges.count; ++i) {
        if (i % steps_between_polls == 0) interrupts.check();
        if (counts(i))
            lists.links[next[sources[i]]++] = {number_of(edges.dst[i]), edges.distance[i]};
    }
    return lists;
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
    std::sort(begin, end, [](const FuzzyLink& a, const FuzzyLink& b) {
        return a.weight != b.weight ? a.weight < b.weight : a.to < b.to;
    });
    // Duplicates of the row tell nothing of how dense its neighborhood is.
    const FuzzyLink* other =
        std::find_if(begin, end, [](const FuzzyLink& link) { return link.weight != 0; });
    const double nearest = other < end ? other->weight : 0;
    const double sigma = bandwidth(begin, end, nearest);
    for (FuzzyLink* link = begin; link < end; ++link)
        link->weight =
            static_cast<float>(std::exp(-std::max(double{link->weight} - nearest, 0.0) / sigma));
}

// The links of all nodes the other way round, sorted by node.
LinkLists reversed(const LinkLists& lists, size_t count, const Interrupts& interrupts) {
    LinkLists back;
    back.begins.assign(count + 1, 0);
    for (const FuzzyLink& link : lists.links) ++back.begins[link.to + 1];
    sum_begins(back.begins);
    back.links.resize(lists.links.size());
    std::vector<size_t> next(back.begins.begin(), back.begins.end() - 1);
    for (uint32_t node = 0; node < count; ++node) {
        if (node % steps_between_polls == 0) interrupts.check();
        for (size_t i = lists.begins[node]; i < lists.begins[node + 1]; ++i)
            back.links[next[lists.links[i].to]++] = {node, lists.links[i].weight};
    }
    return back;
}

// Calls use(to, weight) for the union of two lists that are sorted by node.
template <typename Use>
void unite(const LinkLists& forward, const LinkLists& back, size_t node, const Use& use) {
    size_t i = forward.begins[node], j = back.begins[node];
    const size_t i_end = forward.begins[node + 1], j_end = back.begins[node + 1];
    while (i < i_end || j < j_end) {
        const uint32_t to = j == j_end || (i < i_end && forward.links[i].to < back.links[j].to)
                                ? forward.links[i].to
                                : back.links[j].to;
        float there = 0, here = 0;
        for (; i < i_end && forward.links[i].to == to; ++i)
            there = std::max(there, forward.links[i].weight);
        for (; j < j_end && back.links[j].to == to; ++j)
            here = std::max(here, back.links[j].weight);
        const float weight = there + here - there * here;
        if (weight > 0) use(to, weight);
    }
}

}  // namespace

size_t FuzzyGraph::memory(size_t edges, size_t nodes) {
    // Keys of both ends before duplicates are removed; or lists, those back and the union of both;
    // or the union beside the block of vectors of the start.
    const size_t numbering = 2 * sizeof(int64_t) * edges;
    const size_t uniting = (2 + 2) * sizeof(FuzzyLink) * edges + 5 * sizeof(size_t) * nodes;
    const size_t starting = 2 * sizeof(FuzzyLink) * edges + 128 * nodes;
    return std::max({numbering, uniting, starting}) + 2 * sizeof(int64_t) * nodes;
}

FuzzyGraph::FuzzyGraph(Workers& workers, const KeyedEdges& edges, const Interrupts& interrupts)
    : nodes_(number_nodes(edges, interrupts)) {
    LinkLists forward = gather_lists(edges, nodes_, interrupts);
    for_nodes(workers, count(), [&](size_t node) {
        FuzzyLink* begin = forward.links.data() + forward.begins[node];
        FuzzyLink* end = forward.links.data() + forward.begins[node + 1];
        weigh_list(begin, end);
        std::sort(begin, end, [](const FuzzyLink& a, const FuzzyLink& b) { return a.to < b.to; });
    });
    const LinkLists back = reversed(forward, count(), interrupts);
    begins_.assign(count() + 1, 0);
    for_nodes(workers, count(), [&](size_t node) {
        unite(forward, back, node, [&](uint32_t, float) { ++begins_[node + 1]; });
    });
    sum_begins(begins_);
    links_.resize(begins_.back());
    for_nodes(workers, count(), [&](size_t node) {
        FuzzyLink* next = links_.data() + begins_[node];
        unite(forward, back, node, [&](uint32_t to, float weight) { *next++ = {to, weight}; });
    });
}

}  // namespace pgwarp
