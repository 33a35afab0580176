// Leiden communities: against all partitions of small graphs, and what must hold of large ones.

#include "kernels/communities.h"

#include "kernels/workers.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <random>
#include <set>
#include <vector>

#include <gtest/gtest.h>
#include "test/kernels/seed.h"

namespace pgwarp {
namespace {

struct Edges {
    std::vector<int64_t> src, dst;
    std::vector<float> weight;

    void add(size_t a, size_t b, float w) {
        src.push_back(static_cast<int64_t>(a));
        dst.push_back(static_cast<int64_t>(b));
        weight.push_back(w);
    }
    NeighborGraph graph(Workers& workers) const {
        return make_neighbor_graph(workers, {src.data(), dst.data(), weight.data(), src.size()},
                                   RepeatedEdge::greatest, {});
    }
};

constexpr CommunityOptions given = {CommunityQuality::modularity, 1, EdgeWeights::given, 1, 0};

// By the definition, pair by pair.
double quality_of(const NeighborGraph& graph, const std::vector<uint32_t>& of,
                  const CommunityOptions& options) {
    std::vector<double> degree(graph.vertices());
    double total = 0;
    for (size_t v = 0; v < graph.vertices(); ++v)
        for (uint64_t l = graph.begins[v]; l < graph.begins[v + 1]; ++l) {
            degree[v] += graph.links[l].distance;
            total += graph.links[l].distance;
        }
    double sum = 0;
    for (size_t v = 0; v < graph.vertices(); ++v) {
        for (uint64_t l = graph.begins[v]; l < graph.begins[v + 1]; ++l)
            if (of[graph.links[l].to] == of[v]) sum += graph.links[l].distance;
        for (size_t u = 0; u < graph.vertices(); ++u)
            if (of[u] == of[v])
                sum -=
                    options.resolution *
                    (options.quality == CommunityQuality::cpm ? 1 : degree[u] * degree[v] / total);
    }
    return sum / total;
}

// Groups of `size` vertices: an edge inside with this probability, few between them.
Edges planted(std::mt19937& random, size_t groups, size_t size, uint32_t inside, uint32_t between) {
    Edges edges;
    for (size_t a = 0; a < groups * size; ++a) {
        edges.add(a, a / size * size + (a + 1) % size, 1);
        for (uint32_t i = 0; i < inside; ++i) edges.add(a, a / size * size + random() % size, 1);
        for (uint32_t i = 0; i < between; ++i)
            if (random() % 4 == 0) edges.add(a, random() % (groups * size), 1);
    }
    return edges;
}

TEST(Communities, AreTheBestOfAllPartitions) {
    std::mt19937 random(test_seed());
    int best_found = 0;
    constexpr int rounds = 60;
    for (int round = 0; round < rounds; ++round) {
        Workers workers(1);
        Edges edges;
        for (size_t a = 0; a < 8; ++a) {
            edges.add(a, (a + 1) % 8, 1);
            for (size_t b = a + 2; b < 8; ++b)
                if (random() % 3 == 0) edges.add(a, b, static_cast<float>(1 + random() % 4));
        }
        const NeighborGraph graph = edges.graph(workers);
        CommunityOptions options = given;
        options.quality = round % 2 ? CommunityQuality::cpm : CommunityQuality::modularity;
        options.resolution = round % 2 ? 0.7 : 1;
        double best = -100;
        std::vector<uint32_t> of(8);
        const std::function<void(size_t, uint32_t)> all = [&](size_t v, uint32_t used) {
            if (v == of.size()) {
                best = std::max(best, quality_of(graph, of, options));
                return;
            }
            for (of[v] = 0; of[v] <= used; ++of[v]) all(v + 1, std::max(used, of[v] + 1));
        };
        all(0, 0);
        const Communities found = find_communities(workers, graph, options, {});
        EXPECT_NEAR(found.quality, quality_of(graph, found.of, options), 1e-6);
        EXPECT_LE(found.quality, best + 1e-6);
        EXPECT_GE(found.quality, best - 0.05);
        best_found += found.quality > best - 1e-6;
    }
    EXPECT_GE(best_found, rounds * 8 / 10);
}

TEST(Communities, AreThePlantedOnes) {
    std::mt19937 random(test_seed());
    Workers workers(2);
    const NeighborGraph graph = planted(random, 40, 30, 8, 2).graph(workers);
    for (const EdgeWeights weights : {EdgeWeights::given, EdgeWeights::uniform}) {
        CommunityOptions options = given;
        options.weights = weights;
        const Communities found = find_communities(workers, graph, options, {});
        EXPECT_EQ(found.count, 40u);
        for (size_t v = 0; v < graph.vertices(); ++v)
            EXPECT_EQ(found.of[v], found.of[v / 30 * 30]) << v;
    }
}

TEST(Communities, DoNotDependOnThreadsAndHangTogether) {
    std::mt19937 random(test_seed());
    Workers one(1), four(4);
    // Many more vertices than a piece of a batch has.
    const NeighborGraph graph = planted(random, 400, 60, 3, 8).graph(one);
    CommunityOptions options = given;
    options.iterations = 2;
    const Communities found = find_communities(one, graph, options, {});
    EXPECT_EQ(found.of, find_communities(four, graph, options, {}).of);
    options.seed = 2;
    EXPECT_NE(found.of, find_communities(four, graph, options, {}).of);
    // Each community is found whole from its first vertex.
    std::vector<bool> seen(graph.vertices());
    std::set<uint32_t> begun;
    for (uint32_t v = 0; v < graph.vertices(); ++v) {
        if (seen[v]) continue;
        EXPECT_TRUE(begun.insert(found.of[v]).second) << "community " << found.of[v];
        std::vector<uint32_t> waiting(1, v);
        seen[v] = true;
        while (!waiting.empty()) {
            const uint32_t here = waiting.back();
            waiting.pop_back();
            for (uint64_t l = graph.begins[here]; l < graph.begins[here + 1]; ++l) {
                const uint32_t to = graph.links[l].to;
                if (seen[to] || found.of[to] != found.of[v]) continue;
                seen[to] = true;
                waiting.push_back(to);
            }
        }
    }
    EXPECT_EQ(begun.size(), found.count);
}

// A vertex may have its seventh neighbor at an infinite distance, and one of those at 0.
TEST(Communities, HaveAnEndWithInfiniteDistances) {
    Workers workers(1);
    Edges edges;
    for (size_t v = 1; v < 10; ++v) edges.add(0, v, v < 3 ? 0.5f : INFINITY);
    for (size_t v = 10; v < 20; ++v) edges.add(1, v, 0);
    CommunityOptions options = given;
    options.weights = EdgeWeights::gaussian;
    options.iterations = 0;
    const Communities found = find_communities(workers, edges.graph(workers), options, {});
    EXPECT_TRUE(std::isfinite(found.quality)) << found.quality;
    EXPECT_EQ(found.of[1], found.of[15]);
    // Weights whose sum overflows.
    Edges large;
    for (size_t v = 1; v < 10; ++v) large.add(0, v, INFINITY);
    options.weights = EdgeWeights::given;
    find_communities(workers, large.graph(workers), options, {});
}

TEST(Communities, OfNothingAndInterrupted) {
    Workers workers(1);
    const Communities none = find_communities(workers, Edges().graph(workers), given, {});
    EXPECT_EQ(none.count, 0u);
    Edges edges;
    edges.add(1, 2, 0);  // an edge without weight
    EXPECT_EQ(find_communities(workers, edges.graph(workers), given, {}).count, 2u);
    volatile std::sig_atomic_t flag = 1;
    EXPECT_THROW(find_communities(workers, edges.graph(workers), given, Interrupts(&flag)),
                 Interrupted);
}

}  // namespace
}  // namespace pgwarp
