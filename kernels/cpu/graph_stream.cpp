#include "kernels/graph_stream.h"

#include <algorithm>
#include <limits>
#include <numeric>

namespace pgwarp {

namespace {
constexpr float infinite = std::numeric_limits<float>::infinity();
constexpr float no_number = std::numeric_limits<float>::quiet_NaN();
constexpr size_t min_new_nodes = 4096;  // sorted at a time
}  // namespace

float edge_order(float distance) {
    return distance == distance ? distance : infinite;
}

bool NodeNumbers::add(int64_t node) {
    if (!nodes_.empty() && nodes_.back() == node) return true;
    const auto end = nodes_.begin() + static_cast<long>(sorted_);
    if (std::binary_search(nodes_.begin(), end, node)) return true;
    // The unsorted part is at most half of the sorted one, so that each node is moved only a few
    // times.
    const size_t room = sorted_ + std::max(min_new_nodes, sorted_ / 2);
    if (nodes_.capacity() < room) nodes_.reserve(room);
    nodes_.push_back(node);
    return nodes_.size() < room || sort();
}

bool NodeNumbers::sort() {
    const auto middle = nodes_.begin() + static_cast<long>(sorted_);
    std::sort(middle, nodes_.end());
    std::inplace_merge(nodes_.begin(), middle, nodes_.end());
    nodes_.erase(std::unique(nodes_.begin(), nodes_.end()), nodes_.end());
    sorted_ = nodes_.size();
    return sorted_ <= most_;
}

bool NodeNumbers::finish() {
    if (!sort()) return false;
    nodes_.shrink_to_fit();
    return true;
}

uint32_t NodeNumbers::number_of(int64_t node) const {
    return static_cast<uint32_t>(std::lower_bound(nodes_.begin(), nodes_.end(), node) -
                                 nodes_.begin());
}

bool NodeNumbers::has(int64_t node) const {
    return std::binary_search(nodes_.begin(), nodes_.end(), node);
}

NodeSets::NodeSets(size_t nodes) : parents_(nodes) {
    part();
}

void NodeSets::part() {
    std::iota(parents_.begin(), parents_.end(), 0u);
}

uint32_t NodeSets::root_of(uint32_t node) {
    while (parents_[node] != node) node = parents_[node] = parents_[parents_[node]];
    return node;
}

bool NodeSets::unite(uint32_t a, uint32_t b) {
    a = root_of(a);
    b = root_of(b);
    if (a == b) return false;
    parents_[std::max(a, b)] = std::min(a, b);
    return true;
}

SpanningForest::SpanningForest(size_t nodes, size_t room)
    : room_(std::max(room, 2 * nodes)), sets_(nodes) {
    edges_.reserve(room_);
}

void SpanningForest::add(const NumberedEdge& edge) {
    if (edge.src == edge.dst) return;
    if (edges_.size() == room_) reduce();
    edges_.push_back(edge);
}

// Kruskal's algorithm. An edge dropped now closes a cycle of smaller edges, and always will.
void SpanningForest::reduce() {
    std::sort(edges_.begin(), edges_.end(),
              [](const NumberedEdge& a, const NumberedEdge& b) { return a.distance < b.distance; });
    sets_.part();
    edges_.erase(
        std::remove_if(edges_.begin(), edges_.end(),
                       [&](const NumberedEdge& edge) { return !sets_.unite(edge.src, edge.dst); }),
        edges_.end());
}

float SpanningForest::bottleneck(uint32_t from, uint32_t to) {
    if (from == to) return -infinite;
    reduce();
    sets_.part();
    for (const NumberedEdge& edge : edges_) {
        sets_.unite(edge.src, edge.dst);
        if (sets_.root_of(from) == sets_.root_of(to)) return edge.distance;
    }
    return no_number;
}

DirectedBottleneck::DirectedBottleneck(size_t nodes, uint32_t from, uint32_t to)
    : to_(to), reached_(nodes, no_number) {
    reached_[from] = -infinite;
}

void DirectedBottleneck::add(const NumberedEdge& edge) {
    const float before = reached_[edge.src];
    if (before != before) return;
    const float there = std::max(before, edge.distance);
    // Both comparisons are false where the node was not reached yet (NaN).
    if (reached_[edge.dst] <= there || reached_[to_] <= there) return;
    reached_[edge.dst] = there;
    changed_ = true;
}

bool DirectedBottleneck::end_pass() {
    const bool again = changed_;
    changed_ = false;
    return again;
}

LevelSearch::LevelSearch(size_t nodes, uint32_t from, uint32_t to, bool directed)
    : to_(to),
      directed_(directed),
      found_(from == to),
      arrivals_(nodes, Arrival{0, unset, unset, 0}) {
    arrivals_[from].level = 0;
}

void LevelSearch::step(uint32_t from, uint32_t to, float distance) {
    if (arrivals_[from].level + 1 != level_) return;
    Arrival& there = arrivals_[to];
    if (there.level < level_) return;
    const double sum = arrivals_[from].sum + distance;
    if (there.level != unset && (there.sum < sum || (there.sum == sum && there.before <= from)))
        return;
    there = {sum, from, level_, distance};
    reached_ = true;
}

void LevelSearch::add(const NumberedEdge& edge) {
    if (found_) return;
    step(edge.src, edge.dst, edge.distance);
    if (!directed_) step(edge.dst, edge.src, edge.distance);
}

bool LevelSearch::end_level() {
    found_ = found_ || arrivals_[to_].level != unset;
    const bool again = reached_ && !found_;
    reached_ = false;
    ++level_;
    return again;
}

std::vector<PathStep> LevelSearch::path(const NodeNumbers& numbers) const {
    std::vector<PathStep> path;
    if (arrivals_[to_].level == unset) return path;
    for (uint32_t node = to_; node != unset; node = arrivals_[node].before)
        path.push_back({numbers.node(node), arrivals_[node].distance});
    std::reverse(path.begin(), path.end());
    return path;
}

}  // namespace pgwarp
