// Graphs whose edges come by, against the same graphs in memory.

#include "kernels/graph_stream.h"

#include <algorithm>
#include <limits>
#include <random>
#include <set>
#include <vector>

#include <gtest/gtest.h>
#include "test/kernels/reference.h"
#include "test/kernels/seed.h"

namespace pgwarp {
namespace {

struct Edges {
    std::vector<int64_t> src, dst;
    std::vector<float> distance;

    PathGraph graph(bool directed) const {
        return PathGraph({src.data(), dst.data(), distance.data(), src.size()}, directed, {});
    }
    NodeNumbers numbers() const {
        NodeNumbers numbers(1000000);
        for (size_t i = 0; i < src.size(); ++i)
            EXPECT_TRUE(numbers.add(src[i]) && numbers.add(dst[i]));
        EXPECT_TRUE(numbers.finish());
        return numbers;
    }
    std::vector<NumberedEdge> numbered(const NodeNumbers& numbers) const {
        std::vector<NumberedEdge> edges;
        for (size_t i = 0; i < src.size(); ++i)
            edges.push_back(
                {numbers.number_of(src[i]), numbers.number_of(dst[i]), edge_order(distance[i])});
        return edges;
    }
};

std::vector<PathStep> streamed_path(const Edges& edges, bool directed, int64_t from_key,
                                    int64_t to_key) {
    const NodeNumbers numbers = edges.numbers();
    const auto numbered = edges.numbered(numbers);
    const uint32_t from = numbers.number_of(from_key), to = numbers.number_of(to_key);
    float limit;
    if (directed) {
        DirectedBottleneck search(numbers.count(), from, to);
        do
            for (const NumberedEdge& edge : numbered) search.add(edge);
        while (search.end_pass());
        limit = search.bottleneck();
    } else {
        SpanningForest forest(numbers.count(), 0);
        for (const NumberedEdge& edge : numbered) forest.add(edge);
        limit = forest.bottleneck(from, to);
    }
    if (limit != limit) return {};
    LevelSearch search(numbers.count(), from, to, directed);
    do
        for (const NumberedEdge& edge : numbered)
            if (edge.distance <= limit) search.add(edge);
    while (search.end_level());
    return search.path(numbers);
}

Edges random_edges(std::mt19937& random, size_t nodes, size_t count, size_t distances) {
    Edges edges;
    for (; count > 0; --count) {
        edges.src.push_back(static_cast<int64_t>(between(random, 0, nodes - 1)) * 1000 - 3000);
        edges.dst.push_back(static_cast<int64_t>(between(random, 0, nodes - 1)) * 1000 - 3000);
        const auto drawn = static_cast<float>(between(random, 0, distances));
        edges.distance.push_back(drawn);
        if (between(random, 0, 99) == 0)
            edges.distance.back() = std::numeric_limits<float>::quiet_NaN();
    }
    return edges;
}

TEST(GraphStream, PathsAreThoseInMemory) {
    std::mt19937 random(test_seed());
    for (int round = 0; round < 600; ++round) {
        const size_t nodes = between(random, 1, 200);
        const Edges edges = random_edges(random, nodes, between(random, 1, 4 * nodes),
                                         round % 3 == 0 ? 3 : 1000000);
        const bool directed = round % 2;
        const int64_t from = edges.src[between(random, 0, edges.src.size() - 1)];
        const int64_t to = edges.dst[between(random, 0, edges.dst.size() - 1)];
        const auto expected = edges.graph(directed).smoothest_path(from, to);
        const auto path = streamed_path(edges, directed, from, to);
        ASSERT_EQ(path.size(), expected.size()) << "round " << round;
        for (size_t i = 0; i < path.size(); ++i) {
            EXPECT_EQ(path[i].node, expected[i].node) << "round " << round;
            EXPECT_EQ(path[i].distance, expected[i].distance) << "round " << round;
        }
    }
}

TEST(GraphStream, ComponentsAreThoseInMemory) {
    std::mt19937 random(test_seed());
    for (int round = 0; round < 100; ++round) {
        const size_t nodes = between(random, 1, 300);
        const Edges edges = random_edges(random, nodes, between(random, 1, nodes), 3);
        const NodeNumbers numbers = edges.numbers();
        NodeSets sets(numbers.count());
        for (const NumberedEdge& edge : edges.numbered(numbers)) sets.unite(edge.src, edge.dst);
        const auto expected = edges.graph(true).components();
        ASSERT_EQ(numbers.count(), expected.size());
        for (uint32_t i = 0; i < numbers.count(); ++i) {
            EXPECT_EQ(numbers.node(i), expected[i].node);
            EXPECT_EQ(numbers.node(sets.root_of(i)), expected[i].component);
        }
    }
}

// Many more than are sorted at a time, and the borders of what a key may be.
TEST(GraphStream, NodesAreSortedAndCounted) {
    std::mt19937 random(test_seed());
    for (const size_t distinct : {size_t{3}, size_t{5000}, size_t{70000}}) {
        std::set<int64_t> expected;
        NodeNumbers numbers(distinct), fewer(distinct - 1);
        bool fit = true;
        const auto add = [&](int64_t node) {
            expected.insert(node);
            EXPECT_TRUE(numbers.add(node));
            fit = fit && fewer.add(node);
        };
        add(std::numeric_limits<int64_t>::min());
        add(std::numeric_limits<int64_t>::max());
        for (size_t i = 0; i < 5 * distinct; ++i)
            add(static_cast<int64_t>(between(random, 0, distinct - 3)) * 7919);
        for (size_t i = 0; i < distinct - 2; ++i) add(static_cast<int64_t>(i) * 7919);
        ASSERT_TRUE(numbers.finish());
        EXPECT_FALSE(fit && fewer.finish());
        ASSERT_EQ(numbers.count(), expected.size());
        uint32_t number = 0;
        for (const int64_t node : expected) {
            EXPECT_EQ(numbers.node(number), node);
            EXPECT_EQ(numbers.number_of(node), number++);
        }
        EXPECT_FALSE(numbers.has(7918));
    }
}

}  // namespace
}  // namespace pgwarp
