#include "kernels/graph_paths.h"

#include <algorithm>
#include <limits>
#include <queue>
#include <stdexcept>
#include <utility>

namespace pgwarp {

namespace {
constexpr float infinite = std::numeric_limits<float>::infinity();
constexpr size_t steps_between_polls = 8192;

float finite_order(float distance) {
    return distance == distance ? distance : infinite;
}
}  // namespace

PathGraph::PathGraph(const KeyedEdges& edges, bool directed, const Interrupts& interrupts)
    : interrupts_(interrupts) {
    nodes_.reserve(2 * edges.count);
    nodes_.insert(nodes_.end(), edges.src, edges.src + edges.count);
    nodes_.insert(nodes_.end(), edges.dst, edges.dst + edges.count);
    std::sort(nodes_.begin(), nodes_.end());
    nodes_.erase(std::unique(nodes_.begin(), nodes_.end()), nodes_.end());
    if (nodes_.size() >= std::numeric_limits<uint32_t>::max())
        throw std::runtime_error("the graph has too many nodes");
    interrupts_.check();

    begins_.assign(nodes_.size() + 1, 0);
    const auto each_link = [&](auto use) {
        for (size_t i = 0; i < edges.count; ++i) {
            if (i % steps_between_polls == 0) interrupts_.check();
            const uint32_t a = number_of(edges.src[i]), b = number_of(edges.dst[i]);
            use(a, b, finite_order(edges.distance[i]));
            if (!directed) use(b, a, finite_order(edges.distance[i]));
        }
    };
    each_link([&](uint32_t a, uint32_t, float) { ++begins_[a + 1]; });
    for (size_t i = 0; i + 1 < begins_.size(); ++i) begins_[i + 1] += begins_[i];
    links_.resize(begins_.back());
    std::vector<size_t> next(begins_.begin(), begins_.end() - 1);
    each_link([&](uint32_t a, uint32_t b, float distance) { links_[next[a]++] = {b, distance}; });
}

size_t PathGraph::memory(size_t edges, bool directed) {
    // Nodes before duplicates are removed, links, and the Arrival of every node.
    return edges * (2 * sizeof(int64_t) + (directed ? 1 : 2) * sizeof(Link) + 24);
}

uint32_t PathGraph::number_of(int64_t node) const {
    return static_cast<uint32_t>(std::lower_bound(nodes_.begin(), nodes_.end(), node) -
                                 nodes_.begin());
}

bool PathGraph::has(int64_t node) const {
    return std::binary_search(nodes_.begin(), nodes_.end(), node);
}

// Dijkstra's algorithm with the largest edge in place of the sum. Returns -infinity for a path
// without an edge, NaN where there is no path.
float PathGraph::smallest_bottleneck(uint32_t from, uint32_t to) const {
    std::vector<float> reached(nodes_.size(), std::numeric_limits<float>::quiet_NaN());
    using Entry = std::pair<float, uint32_t>;
    std::priority_queue<Entry, std::vector<Entry>, std::greater<>> waiting;
    waiting.emplace(-infinite, from);
    reached[from] = -infinite;
    for (size_t step = 0; !waiting.empty(); ++step) {
        if (step % steps_between_polls == 0) interrupts_.check();
        const auto [largest, node] = waiting.top();
        waiting.pop();
        if (node == to) return largest;
        if (largest > reached[node]) continue;
        for (size_t i = begins_[node]; i < begins_[node + 1]; ++i) {
            const float there = std::max(largest, links_[i].distance);
            float& best = reached[links_[i].to];
            if (best <= there) continue;  // false where the node was not reached yet (NaN)
            best = there;
            waiting.emplace(there, links_[i].to);
        }
    }
    return std::numeric_limits<float>::quiet_NaN();
}

std::vector<PathStep> PathGraph::smoothest_path(int64_t from_key, int64_t to_key) const {
    const uint32_t from = number_of(from_key), to = number_of(to_key);
    const float limit = smallest_bottleneck(from, to);
    if (limit != limit) return {};

    // Level by level along edges up to the limit: a node is first reached by the fewest steps, and
    // its predecessor is the node one level before with the smallest sum.
    struct Arrival {
        double sum;
        uint32_t before;
        uint32_t level;
        float distance;
    };
    std::vector<Arrival> arrivals(nodes_.size(), Arrival{0, unset, unset, 0});
    arrivals[from].level = 0;
    std::vector<uint32_t> level{from}, next;
    for (uint32_t depth = 1; arrivals[to].level == unset && !level.empty(); ++depth) {
        interrupts_.check();
        next.clear();
        for (const uint32_t node : level)
            for (size_t i = begins_[node]; i < begins_[node + 1]; ++i) {
                const Link& link = links_[i];
                if (link.distance > limit) continue;
                Arrival& there = arrivals[link.to];
                if (there.level < depth) continue;
                const double sum = arrivals[node].sum + link.distance;
                if (there.level == unset)
                    next.push_back(link.to);
                else if (there.sum < sum || (there.sum == sum && there.before <= node))
                    continue;
                there = {sum, node, depth, link.distance};
            }
        std::swap(level, next);
    }
    std::vector<PathStep> path;
    for (uint32_t node = to; node != unset; node = arrivals[node].before)
        path.push_back({nodes_[node], arrivals[node].distance});
    std::reverse(path.begin(), path.end());
    return path;
}

std::vector<NodeComponent> PathGraph::components() const {
    std::vector<uint32_t> parents(nodes_.size());
    for (uint32_t i = 0; i < parents.size(); ++i) parents[i] = i;
    const auto root_of = [&](uint32_t node) {
        while (parents[node] != node) node = parents[node] = parents[parents[node]];
        return node;
    };
    for (uint32_t node = 0; node < nodes_.size(); ++node) {
        if (node % steps_between_polls == 0) interrupts_.check();
        for (size_t i = begins_[node]; i < begins_[node + 1]; ++i) {
            // The smaller number is the root, so that a component is named by its smallest node.
            const uint32_t a = root_of(node), b = root_of(links_[i].to);
            parents[std::max(a, b)] = std::min(a, b);
        }
    }
    std::vector<NodeComponent> found(nodes_.size());
    for (uint32_t node = 0; node < nodes_.size(); ++node)
        found[node] = {nodes_[node], nodes_[root_of(node)]};
    return found;
}

}  // namespace pgwarp
