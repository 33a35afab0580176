// Paths through graphs, against all paths tried one by one.

#include "kernels/graph_paths.h"

#include "kernels/workers.h"

#include <algorithm>
#include <limits>
#include <map>
#include <random>
#include <set>
#include <tuple>
#include <vector>

#include <gtest/gtest.h>
#include "test/kernels/reference.h"
#include "test/kernels/seed.h"

namespace pgwarp {
namespace {

struct Edges {
    std::vector<int64_t> src, dst;
    std::vector<float> distance;

    void add(int64_t a, int64_t b, float d) {
        src.push_back(a);
        dst.push_back(b);
        distance.push_back(d);
    }
    PathGraph graph(bool directed = false) const {
        return PathGraph({src.data(), dst.data(), distance.data(), src.size()}, directed, {});
    }
};

// (largest edge, steps, sum) of the best path, by trying all that visit no node twice.
using Cost = std::tuple<float, int, double>;
struct AllPaths {
    const Edges& edges;
    bool directed;
    int64_t to;
    std::set<int64_t> visited = {};
    bool found = false;
    Cost best = {};

    void go(int64_t node, Cost cost) {
        if (node == to) {
            if (!found || cost < best) best = cost;
            found = true;
            return;
        }
        visited.insert(node);
        for (size_t i = 0; i < edges.src.size(); ++i)
            for (bool back : {false, true}) {
                if (back && directed) continue;
                const int64_t a = back ? edges.dst[i] : edges.src[i];
                const int64_t b = back ? edges.src[i] : edges.dst[i];
                if (a != node || visited.count(b)) continue;
                go(b, {std::max(std::get<0>(cost), edges.distance[i]), std::get<1>(cost) + 1,
                       std::get<2>(cost) + edges.distance[i]});
            }
        visited.erase(node);
    }
};

constexpr float below_all = -std::numeric_limits<float>::infinity();

TEST(GraphPaths, AreTheBestThereAre) {
    std::mt19937 random(test_seed());
    for (int round = 0; round < 300; ++round) {
        const auto nodes = static_cast<int64_t>(between(random, 2, 8));
        Edges edges;
        // Few distances, many ties.
        for (size_t i = between(random, 1, 14); i > 0; --i)
            edges.add(static_cast<int64_t>(between(random, 0, nodes - 1)) * 1000 - 3000,
                      static_cast<int64_t>(between(random, 0, nodes - 1)) * 1000 - 3000,
                      static_cast<float>(between(random, 0, 4)));
        const bool directed = round % 2;
        const PathGraph graph = edges.graph(directed);
        const int64_t from = edges.src[between(random, 0, edges.src.size() - 1)];
        const int64_t to = edges.dst[between(random, 0, edges.dst.size() - 1)];
        AllPaths all{edges, directed, to};
        all.go(from, {below_all, 0, 0});
        const auto path = graph.smoothest_path(from, to);
        ASSERT_EQ(!path.empty(), all.found) << "round " << round;
        if (path.empty()) continue;
        EXPECT_EQ(path.front().node, from);
        EXPECT_EQ(path.back().node, to);
        Cost cost{below_all, 0, 0};
        for (size_t i = 1; i < path.size(); ++i) {
            bool there = false;
            for (size_t e = 0; e < edges.src.size(); ++e)
                there |= edges.distance[e] == path[i].distance &&
                         ((edges.src[e] == path[i - 1].node && edges.dst[e] == path[i].node) ||
                          (!directed && edges.dst[e] == path[i - 1].node &&
                           edges.src[e] == path[i].node));
            EXPECT_TRUE(there) << "no such edge";
            cost = {std::max(std::get<0>(cost), path[i].distance), std::get<1>(cost) + 1,
                    std::get<2>(cost) + path[i].distance};
        }
        EXPECT_EQ(cost, all.best) << "round " << round;
    }
}

TEST(GraphPaths, LongDetoursWinIfTheyAreSmooth) {
    Edges edges;
    for (int64_t i = 0; i < 100; ++i) edges.add(i, i + 1, 1);
    edges.add(0, 100, 1.5f);
    EXPECT_EQ(edges.graph().smoothest_path(0, 100).size(), 101u);
    EXPECT_EQ(edges.graph().smoothest_path(100, 0).size(), 101u);
    EXPECT_EQ(edges.graph(true).smoothest_path(0, 100).size(), 101u);
    EXPECT_TRUE(edges.graph(true).smoothest_path(100, 0).empty());
    EXPECT_EQ(edges.graph().smoothest_path(7, 7).size(), 1u);
}

TEST(GraphPaths, WhatIsNotANumberIsFar) {
    Edges edges;
    edges.add(1, 2, std::numeric_limits<float>::quiet_NaN());
    edges.add(2, 3, std::numeric_limits<float>::infinity());
    edges.add(1, 4, -5);
    EXPECT_EQ(edges.graph().smoothest_path(1, 3).size(), 3u);
    EXPECT_EQ(edges.graph().smoothest_path(4, 1).size(), 2u);
    EXPECT_TRUE(edges.graph().has(4));
    EXPECT_FALSE(edges.graph().has(5));
}

TEST(GraphPaths, ComponentsAreNamedByTheirSmallest) {
    std::mt19937 random(test_seed());
    for (int round = 0; round < 100; ++round) {
        Edges edges;
        for (size_t i = between(random, 1, 60); i > 0; --i)
            edges.add(static_cast<int64_t>(between(random, 0, 80)) - 40,
                      static_cast<int64_t>(between(random, 0, 80)) - 40, 1);
        // Plainly: names spread until none changes.
        std::map<int64_t, int64_t> names;
        for (size_t i = 0; i < edges.src.size(); ++i)
            names[edges.src[i]] = edges.src[i], names[edges.dst[i]] = edges.dst[i];
        for (bool changed = true; changed;) {
            changed = false;
            for (size_t i = 0; i < edges.src.size(); ++i) {
                int64_t &a = names[edges.src[i]], &b = names[edges.dst[i]];
                if (a == b) continue;
                a = b = std::min(a, b);
                changed = true;
            }
        }
        const auto found = edges.graph(round % 2).components();
        ASSERT_EQ(found.size(), names.size());
        auto expected = names.begin();
        for (const NodeComponent& node : found) {
            EXPECT_EQ(node.node, expected->first);
            EXPECT_EQ(node.component, expected->second);
            ++expected;
        }
    }
}

TEST(GraphPaths, InterruptEndsIt) {
    Edges edges;
    for (int64_t i = 0; i < 10; ++i) edges.add(i, i + 1, 1);
    volatile std::sig_atomic_t raised = 0;
    const PathGraph graph({edges.src.data(), edges.dst.data(), edges.distance.data(), 10}, false,
                          &raised);
    raised = 1;
    EXPECT_THROW(graph.smoothest_path(0, 10), Interrupted);
    EXPECT_THROW(graph.components(), Interrupted);
    EXPECT_THROW(PathGraph({edges.src.data(), edges.dst.data(), edges.distance.data(), 10}, false,
                           {nullptr, &raised}),
                 Interrupted);
}

}  // namespace
}  // namespace pgwarp
