#include "kernels/cpu/community_graph.h"

#include "kernels/cpu/pieces.h"

#include <algorithm>
#include <numeric>

namespace pgwarp {

Groups group_nodes(const std::vector<uint32_t>& group_of, size_t groups) {
    Groups grouped = {std::vector<uint64_t>(groups + 1), std::vector<uint32_t>(group_of.size())};
    for (const uint32_t group : group_of) ++grouped.begins[group + 1];
    std::partial_sum(grouped.begins.begin(), grouped.begins.end(), grouped.begins.begin());
    std::vector<uint64_t> next(grouped.begins.begin(), grouped.begins.end() - 1);
    for (uint32_t node = 0; node < group_of.size(); ++node)
        grouped.nodes[next[group_of[node]]++] = node;
    return grouped;
}

CommunityGraph aggregate(Workers& workers, const CommunityGraph& graph, const Groups& groups,
                         const std::vector<uint32_t>& group_of) {
    constexpr size_t groups_in_piece = 256;
    const size_t count = groups.count();
    CommunityGraph above = {std::vector<uint64_t>(count + 1), {}, std::vector<double>(count)};
    std::vector<std::vector<NeighborLink>> pieces(count / groups_in_piece + 1);
    std::vector<WeightSums> sums(static_cast<size_t>(workers.threads()));
    for_pieces(workers, count, groups_in_piece, [&](size_t begin, size_t end, int thread) {
        std::vector<NeighborLink>& piece = pieces[begin / groups_in_piece];
        WeightSums& sum = sums[static_cast<size_t>(thread)];
        for (size_t group = begin; group < end; ++group) {
            size_t edges = 0;
            const auto each_node = [&](const auto& use) {
                for (uint64_t i = groups.begins[group]; i < groups.begins[group + 1]; ++i)
                    use(groups.nodes[i]);
            };
            each_node([&](uint32_t node) {
                edges += graph.begins[node + 1] - graph.begins[node];
                above.sizes[group] += graph.sizes[node];
            });
            sum.begin(edges);
            each_node([&](uint32_t node) {
                for (uint64_t i = graph.begins[node]; i < graph.begins[node + 1]; ++i) {
                    const uint32_t other = group_of[graph.links[i].to];
                    if (other != group) sum.add(other, graph.links[i].distance);
                }
            });
            const size_t before = piece.size();
            sum.each([&](uint32_t other, double weight) {
                piece.push_back({other, static_cast<float>(weight)});
            });
            above.begins[group + 1] = piece.size() - before;
        }
    });
    std::partial_sum(above.begins.begin(), above.begins.end(), above.begins.begin());
    above.links.reserve(above.begins.back());
    for (std::vector<NeighborLink>& piece : pieces) {
        above.links.insert(above.links.end(), piece.begin(), piece.end());
        piece = {};
    }
    return above;
}

}  // namespace pgwarp
