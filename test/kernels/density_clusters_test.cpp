// HDBSCAN* over graphs of neighbors, against the definition tried level by level.

#include "kernels/density_clusters.h"

#include "kernels/cpu/spanning_edges.h"
#include "kernels/workers.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <numeric>
#include <random>
#include <set>
#include <vector>

#include <gtest/gtest.h>
#include "test/kernels/seed.h"

namespace pgwarp {
namespace {

constexpr float infinite = std::numeric_limits<float>::infinity();

struct Edges {
    std::vector<int64_t> src, dst;
    std::vector<float> distance;

    void add(int64_t a, int64_t b, float d) {
        src.push_back(a);
        dst.push_back(b);
        distance.push_back(d);
    }
    NeighborGraph graph(Workers& workers, RepeatedEdge repeated = RepeatedEdge::smallest) const {
        return make_neighbor_graph(workers, {src.data(), dst.data(), distance.data(), src.size()},
                                   repeated, {});
    }
    void shuffle(uint32_t seed) {
        std::vector<size_t> order(src.size());
        std::iota(order.begin(), order.end(), 0);
        std::shuffle(order.begin(), order.end(), std::mt19937(seed));
        Edges other;
        for (const size_t i : order) other.add(src[i], dst[i], distance[i]);
        *this = other;
    }
};

// k nearest of points on a grid, so that many distances are equal.
Edges nearest(const std::vector<std::pair<int, int>>& points, size_t k) {
    Edges edges;
    for (size_t a = 0; a < points.size(); ++a) {
        std::vector<std::pair<float, size_t>> others;
        for (size_t b = 0; b < points.size(); ++b)
            if (a != b)
                others.emplace_back(
                    std::hypot(static_cast<float>(points[a].first - points[b].first),
                               static_cast<float>(points[a].second - points[b].second)),
                    b);
        std::sort(others.begin(), others.end());
        for (size_t i = 0; i < std::min(k, others.size()); ++i)
            edges.add(static_cast<int64_t>(a), static_cast<int64_t>(others[i].second),
                      others[i].first);
    }
    return edges;
}

std::vector<std::pair<int, int>> random_points(std::mt19937& random, size_t count, int range) {
    std::vector<std::pair<int, int>> points;
    for (size_t i = 0; i < count; ++i) {
        // Half of them in two corners.
        const int corner = static_cast<int>(random() % 4);
        const int width = corner < 2 ? range / 4 : range;
        const auto at = [&] { return static_cast<int>(random() % static_cast<uint32_t>(width)); };
        points.emplace_back(at() + (corner == 1 ? 3 * range / 4 : 0), at());
    }
    return points;
}

// The definition: at every level all edges of its weight go, and what hangs together is looked up
// anew.
class ByLevels {
  public:
    ByLevels(const NeighborGraph& graph, const DensityOptions& options)
        : graph_(graph),
          options_(options),
          rows_(graph.vertices()),
          lambda_(graph.vertices()),
          from_(graph.vertices()) {
        for (size_t v = 0; v < graph.vertices(); ++v) core_.push_back(core_of(v));
        for (size_t v = 0; v < graph.vertices(); ++v)
            for (uint64_t l = graph.begins[v]; l < graph.begins[v + 1]; ++l)
                levels_.insert(weight(v, graph.links[l]));
        levels_.erase(infinite);
        least_ = 1;
        for (const float level : levels_)
            if (level > 0) {
                least_ = level;
                break;
            }
    }

    std::vector<DensityLabel> labels() {
        std::vector<uint32_t> all(graph_.vertices());
        std::iota(all.begin(), all.end(), 0);
        clusters_.push_back({-1, 0, 0, 0, {}, {}});
        split(all, 0, infinite);
        std::vector<int> chosen;
        for (const int child : clusters_[0].children) choose(child, chosen);
        // The largest first, then by the smallest vertex.
        std::sort(chosen.begin(), chosen.end(), [&](int a, int b) {
            const auto &x = clusters_[a].vertices, &y = clusters_[b].vertices;
            return x.size() != y.size() ? x.size() > y.size() : x[0] < y[0];
        });
        for (size_t v = 0; v < rows_.size(); ++v) {
            const double peak = peak_of(from_[v]);
            rows_[v] = {-1, 0, peak > 0 ? static_cast<float>(1 - lambda_[v] / peak) : 0};
            for (size_t i = 0; i < chosen.size(); ++i) {
                const Cluster& cluster = clusters_[chosen[i]];
                if (!std::binary_search(cluster.vertices.begin(), cluster.vertices.end(), v))
                    continue;
                rows_[v].label = static_cast<int32_t>(i);
                rows_[v].probability =
                    static_cast<float>(std::min(lambda_[v], cluster.death) / cluster.death);
            }
        }
        return rows_;
    }

  private:
    struct Cluster {
        int parent;
        double birth, death, stability;
        std::vector<int> children;
        std::vector<uint32_t> vertices;
    };

    float core_of(size_t v) const {
        std::vector<float> distances(1, 0.0f);
        for (uint64_t l = graph_.begins[v]; l < graph_.begins[v + 1]; ++l)
            distances.push_back(graph_.links[l].distance);
        std::sort(distances.begin(), distances.end());
        return distances.size() < options_.min_samples ? infinite
                                                       : distances[options_.min_samples - 1];
    }
    float weight(size_t v, const NeighborLink& link) const {
        return std::max({core_[v], core_[link.to], link.distance});
    }
    double density(float level) const {
        return level == infinite ? 0 : 1.0 / std::max(level, least_);
    }

    // Parts of a set by its edges of less than this weight.
    std::vector<std::vector<uint32_t>> parts(const std::vector<uint32_t>& set, float level) const {
        std::set<uint32_t> left(set.begin(), set.end());
        std::vector<std::vector<uint32_t>> found;
        while (!left.empty()) {
            std::vector<uint32_t> part(1, *left.begin());
            left.erase(left.begin());
            for (size_t i = 0; i < part.size(); ++i)
                for (uint64_t l = graph_.begins[part[i]]; l < graph_.begins[part[i] + 1]; ++l)
                    if (weight(part[i], graph_.links[l]) < level && left.erase(graph_.links[l].to))
                        part.push_back(graph_.links[l].to);
            std::sort(part.begin(), part.end());
            found.push_back(part);
        }
        return found;
    }

    // A set that hangs together by edges up to `level`, which are removed from there on.
    void split(const std::vector<uint32_t>& set, int cluster, float level) {
        const auto found = parts(set, level);
        const double lambda = density(level);
        const auto large = [&](const std::vector<uint32_t>& part) {
            return part.size() >= options_.min_cluster_size;
        };
        const auto count = std::count_if(found.begin(), found.end(), large);
        for (const auto& part : found) {
            if (count >= 2 || !large(part)) {
                clusters_[cluster].stability +=
                    static_cast<double>(part.size()) * (lambda - clusters_[cluster].birth);
                clusters_[cluster].death = std::max(clusters_[cluster].death, lambda);
            }
            if (!large(part)) {
                for (const uint32_t v : part) lambda_[v] = lambda, from_[v] = cluster;
                continue;
            }
            int in = cluster;
            if (count >= 2) {
                in = static_cast<int>(clusters_.size());
                clusters_.push_back({cluster, lambda, lambda, 0, {}, part});
                clusters_[cluster].children.push_back(in);
            }
            const auto next = levels_.lower_bound(level);
            split(part, in, *std::prev(next));
        }
    }

    // Returns the stability of what it has chosen.
    double choose(int cluster, std::vector<int>& chosen) {
        std::vector<int> below;
        double sum = 0;
        for (const int child : clusters_[cluster].children) sum += choose(child, below);
        const bool is_leaf = clusters_[cluster].children.empty();
        if (is_leaf || (options_.selection == ClusterSelection::excess_of_mass &&
                        sum <= clusters_[cluster].stability)) {
            chosen.push_back(cluster);
            return clusters_[cluster].stability;
        }
        chosen.insert(chosen.end(), below.begin(), below.end());
        return sum;
    }
    double peak_of(int cluster) const {
        double peak = clusters_[cluster].death;
        for (const int child : clusters_[cluster].children) peak = std::max(peak, peak_of(child));
        return peak;
    }

    const NeighborGraph& graph_;
    DensityOptions options_;
    std::vector<float> core_;
    std::set<float> levels_;
    float least_;
    std::vector<Cluster> clusters_;
    std::vector<DensityLabel> rows_;
    std::vector<double> lambda_;
    std::vector<int> from_;
};

void expect_same(const std::vector<DensityLabel>& found, const std::vector<DensityLabel>& wanted) {
    ASSERT_EQ(found.size(), wanted.size());
    for (size_t v = 0; v < found.size(); ++v) {
        EXPECT_EQ(found[v].label, wanted[v].label) << "vertex " << v;
        EXPECT_NEAR(found[v].probability, wanted[v].probability, 1e-5) << "vertex " << v;
        EXPECT_NEAR(found[v].outlier_score, wanted[v].outlier_score, 1e-5) << "vertex " << v;
    }
}

// By its bits, a negative zero would be the greatest weight of all.
TEST(SpanningEdges, TakeNegativeZeroAsZero) {
    Workers workers(1);
    Edges edges;
    edges.add(1, 2, -0.0f);
    edges.add(2, 3, 1);
    edges.add(1, 3, 1);
    const NeighborGraph graph = edges.graph(workers);
    const std::vector<float> core(3, -0.0f);
    const std::vector<SpanningEdge> spanning = spanning_edges(workers, graph, core, {});
    ASSERT_EQ(spanning.size(), 2u);
    EXPECT_EQ(spanning[0].weight, 0);
    EXPECT_EQ(spanning[1].weight, 1);
}

TEST(NeighborGraph, LeadsBothWaysAndKeepsOneOfRepeatedEdges) {
    Workers workers(2);
    Edges edges;
    edges.add(30, 10, 2);
    edges.add(10, 30, 3);
    edges.add(10, 20, 1);
    edges.add(10, 20, 5);
    edges.add(20, 20, 0);
    edges.add(20, 30, std::numeric_limits<float>::quiet_NaN());
    for (const bool sparse : {false, true}) {
        if (sparse)
            edges.add(std::numeric_limits<int64_t>::max(), std::numeric_limits<int64_t>::min(), 1);
        const NeighborGraph least = edges.graph(workers);
        const NeighborGraph most = edges.graph(workers, RepeatedEdge::greatest);
        const size_t first = sparse ? 1 : 0;
        EXPECT_EQ(least.vertices(), sparse ? 5u : 3u);
        EXPECT_EQ(least.longest_list, 3u);
        EXPECT_EQ(least.keys[first], 10);
        EXPECT_EQ(least.keys[first + 2], 30);
        ASSERT_EQ(least.begins[first + 1] - least.begins[first], 2u);
        const NeighborLink* links = &least.links[least.begins[first]];
        EXPECT_EQ(links[0].to, first + 1);
        EXPECT_EQ(links[0].distance, 1);
        EXPECT_EQ(links[1].distance, 2);
        EXPECT_EQ(most.links[most.begins[first]].distance, 5);
        EXPECT_EQ(most.links[most.begins[first] + 1].distance, 3);
        EXPECT_TRUE(std::isinf(least.links[least.begins[first + 1] + 1].distance));
    }
}

TEST(SpanningEdges, AreOfTheLeastSum) {
    std::mt19937 random(test_seed());
    for (int round = 0; round < 30; ++round) {
        Workers workers(1 + round % 3);
        const Edges edges = nearest(random_points(random, 60, 30), 2 + round % 6);
        const NeighborGraph graph = edges.graph(workers);
        const std::vector<float> core = core_distances(workers, graph, 1 + round % 4);
        const auto found = spanning_edges(workers, graph, core, {});
        // Kruskal's algorithm
        struct Edge {
            float weight;
            uint32_t a, b;
        };
        std::vector<Edge> all;
        for (uint32_t v = 0; v < graph.vertices(); ++v)
            for (uint64_t l = graph.begins[v]; l < graph.begins[v + 1]; ++l)
                all.push_back(
                    {std::max({core[v], core[graph.links[l].to], graph.links[l].distance}), v,
                     graph.links[l].to});
        std::sort(all.begin(), all.end(),
                  [](const Edge& x, const Edge& y) { return x.weight < y.weight; });
        std::vector<uint32_t> set(graph.vertices());
        std::iota(set.begin(), set.end(), 0);
        std::vector<float> wanted;
        for (const Edge& edge : all) {
            const uint32_t a = set[edge.a], b = set[edge.b];
            if (a == b || std::isinf(edge.weight)) continue;
            std::replace(set.begin(), set.end(), a, b);
            wanted.push_back(edge.weight);
        }
        ASSERT_EQ(found.size(), wanted.size());
        for (size_t i = 0; i < wanted.size(); ++i) EXPECT_EQ(found[i].weight, wanted[i]);
    }
}

TEST(DensityClusters, AreThoseOfTheDefinition) {
    std::mt19937 random(test_seed());
    for (int round = 0; round < 200; ++round) {
        SCOPED_TRACE(round);
        Workers workers(1 + round % 2);
        const size_t k = 2 + random() % 12;
        Edges edges = nearest(random_points(random, 20 + random() % 60, 8 + round % 30), k);
        const NeighborGraph graph = edges.graph(workers);
        const DensityOptions options = {
            2 + static_cast<uint32_t>(random() % 8), 1 + static_cast<uint32_t>(random() % (k + 1)),
            random() % 2 ? ClusterSelection::leaves : ClusterSelection::excess_of_mass};
        const auto found = density_clusters(workers, graph, options, {});
        expect_same(found, ByLevels(graph, options).labels());
        edges.shuffle(static_cast<uint32_t>(round));
        expect_same(density_clusters(workers, edges.graph(workers), options, {}), found);
    }
}

TEST(DensityClusters, OfNothingAndOfEqualRows) {
    Workers workers(1);
    const DensityOptions options = {2, 2, ClusterSelection::excess_of_mass};
    EXPECT_TRUE(density_clusters(workers, Edges().graph(workers), options, {}).empty());
    // Two piles of equal rows, and one row between them.
    Edges edges;
    for (const int64_t pile : {0, 10})
        for (int64_t a = pile; a < pile + 4; ++a) {
            for (int64_t b = pile; b < pile + 4; ++b)
                if (a != b) edges.add(a, b, 0);
            edges.add(a, 20, 5);
        }
    const auto found = density_clusters(workers, edges.graph(workers), options, {});
    ASSERT_EQ(found.size(), 9u);
    for (size_t v = 0; v < 8; ++v) {
        EXPECT_EQ(found[v].label, v < 4 ? 0 : 1);
        EXPECT_EQ(found[v].probability, 1);
        EXPECT_EQ(found[v].outlier_score, 0);
    }
    EXPECT_EQ(found[8].label, -1);
}

TEST(DensityClusters, Interrupted) {
    volatile std::sig_atomic_t flag = 1;
    const Interrupts interrupts(&flag);
    Workers workers(1);
    std::mt19937 random(3);
    const NeighborGraph graph = nearest(random_points(random, 50, 20), 3).graph(workers);
    EXPECT_THROW(density_clusters(workers, graph, {5, 3, ClusterSelection::leaves}, interrupts),
                 Interrupted);
}

}  // namespace
}  // namespace pgwarp
