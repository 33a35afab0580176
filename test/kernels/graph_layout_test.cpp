// Layouts of graphs: the fuzzy set against a simple one in float64, and what a layout must keep.

#include "kernels/graph_layout.h"

#include "kernels/workers.h"

#include <algorithm>
#include <cmath>
#include <csignal>
#include <limits>
#include <map>
#include <numeric>
#include <random>
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
    KeyedEdges keyed() const { return {src.data(), dst.data(), distance.data(), src.size()}; }
    void shuffle(std::mt19937& random) {
        for (size_t i = src.size(); i > 1; --i) {
            const size_t j = between(random, 0, i - 1);
            std::swap(src[i - 1], src[j]);
            std::swap(dst[i - 1], dst[j]);
            std::swap(distance[i - 1], distance[j]);
        }
    }
};

// The others by distance, nearest first.
std::vector<uint32_t> ranked(const std::vector<float>& rows, size_t dims, size_t of) {
    const size_t count = rows.size() / dims;
    std::vector<double> distances(count);
    for (size_t i = 0; i < count; ++i)
        distances[i] = reference_squared_l2(&rows[of * dims], &rows[i * dims], dims);
    std::vector<uint32_t> order(count);
    std::iota(order.begin(), order.end(), 0);
    order.erase(order.begin() + static_cast<std::ptrdiff_t>(of));
    std::stable_sort(order.begin(), order.end(),
                     [&](uint32_t a, uint32_t b) { return distances[a] < distances[b]; });
    return order;
}

Edges exact_graph(const std::vector<float>& rows, size_t dims, size_t k) {
    Edges edges;
    for (size_t i = 0; i < rows.size() / dims; ++i) {
        const std::vector<uint32_t> order = ranked(rows, dims, i);
        for (size_t j = 0; j < k; ++j)
            edges.add(static_cast<int64_t>(i), order[j],
                      static_cast<float>(std::sqrt(
                          reference_squared_l2(&rows[i * dims], &rows[order[j] * dims], dims))));
    }
    return edges;
}

// Venna and Kaski 2001: what enters a neighborhood that was not in it costs its rank.
double trustworthiness(const std::vector<float>& rows, size_t dims,
                       const std::vector<LayoutPoint>& points, size_t k) {
    const size_t count = points.size();
    std::vector<float> flat;
    for (const LayoutPoint& point : points) flat.insert(flat.end(), {point.x, point.y});
    double cost = 0;
    for (size_t i = 0; i < count; ++i) {
        const std::vector<uint32_t> before = ranked(rows, dims, i), after = ranked(flat, 2, i);
        for (size_t j = 0; j < k; ++j) {
            const auto rank = static_cast<size_t>(
                std::find(before.begin(), before.end(), after[j]) - before.begin() + 1);
            if (rank > k) cost += static_cast<double>(rank - k);
        }
    }
    const auto n = static_cast<double>(count), near = static_cast<double>(k);
    return 1 - 2 / (n * near * (2 * n - 3 * near - 1)) * cost;
}

bool same(const std::vector<LayoutPoint>& a, const std::vector<LayoutPoint>& b) {
    return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                      [](const LayoutPoint& one, const LayoutPoint& other) {
                          return one.x == other.x && one.y == other.y;
                      });
}

std::vector<LayoutPoint> layout_of(const Edges& edges, const LayoutOptions& options,
                                   int threads = 2) {
    Workers workers(threads);
    return layout(workers, FuzzyGraph(workers, edges.keyed(), {}), options, {});
}

TEST(GraphLayout, CurvesAreThoseOfLeastSquares) {
    struct Case {
        double min_dist, spread, a, b;
    };
    // By scipy's curve_fit, as umap-learn does it.
    for (const Case& wanted :
         {Case{0.1, 1, 1.5769434602, 0.8950608780}, Case{0, 1, 1.9328083976, 0.7904949734},
          Case{0.5, 1, 0.5830300205, 1.3341669929}, Case{1, 1, 0.1149756829, 1.9292371467},
          Case{0.25, 2.5, 0.3058124895, 0.8950607140}}) {
        const LayoutCurve found = fit_layout_curve(wanted.min_dist, wanted.spread);
        EXPECT_NEAR(found.a / wanted.a, 1, 1e-4) << wanted.min_dist << ' ' << wanted.spread;
        EXPECT_NEAR(found.b / wanted.b, 1, 1e-4) << wanted.min_dist << ' ' << wanted.spread;
    }
}

// The memberships of a list, by bisection.
std::map<int64_t, double> reference_memberships(
    const std::vector<std::pair<int64_t, float>>& list) {
    double nearest = 0;
    for (const auto& [to, distance] : list)
        if (distance != 0 && (nearest == 0 || distance < nearest)) nearest = distance;
    double low = 1e-9, high = 1e9;
    for (int step = 0; step < 200; ++step) {
        const double middle = std::sqrt(low * high);
        double sum = 0;
        for (const auto& [to, distance] : list)
            sum += std::exp(-std::max(distance - nearest, 0.0) / middle);
        (sum > std::log2(static_cast<double>(list.size()) + 1) ? high : low) = middle;
    }
    std::map<int64_t, double> found;
    for (const auto& [to, distance] : list)
        found[to] = std::exp(-std::max(distance - nearest, 0.0) / low);
    return found;
}

TEST(GraphLayout, MembershipsAreThoseOfAReference) {
    std::mt19937 random(test_seed());
    for (int round = 0; round < 20; ++round) {
        const size_t count = between(random, 12, 60), k = between(random, 3, 10);
        const std::vector<float> rows = normal_floats(random, count * 3);
        Edges edges = exact_graph(rows, 3, k);
        std::map<int64_t, std::map<int64_t, double>> memberships;
        for (size_t i = 0; i < count; ++i) {
            std::vector<std::pair<int64_t, float>> list;
            for (size_t j = i * k; j < (i + 1) * k; ++j)
                list.emplace_back(edges.dst[j], edges.distance[j]);
            memberships[static_cast<int64_t>(i)] = reference_memberships(list);
        }
        // None of these makes a link.
        edges.add(3, 3, 0.5f);
        edges.add(4, 0, std::numeric_limits<float>::quiet_NaN());
        edges.add(5, 0, std::numeric_limits<float>::infinity());
        edges.shuffle(random);
        Workers workers(2);
        const FuzzyGraph graph(workers, edges.keyed(), {});
        ASSERT_EQ(graph.count(), count);
        for (size_t i = 0; i < count; ++i) {
            const auto node = static_cast<int64_t>(i);
            ASSERT_EQ(graph.node(i), node);
            std::map<int64_t, double> wanted = memberships[node];
            for (auto& [other, list] : memberships)
                if (list.count(node)) wanted[other] += list[node] - wanted[other] * list[node];
            ASSERT_EQ(static_cast<size_t>(graph.end(i) - graph.begin(i)), wanted.size());
            for (const FuzzyLink* link = graph.begin(i); link < graph.end(i); ++link)
                EXPECT_NEAR(link->weight, wanted[link->to], 1e-4);
        }
    }
}

// The first eigenvector of a path rises along it.
TEST(GraphLayout, StartsAPathInOrder) {
    Edges edges;
    for (int64_t i = 0; i + 1 < 40; ++i) {
        edges.add(i, i + 1, 1);
        edges.add(i + 1, i, 1);
    }
    Workers workers(2);
    const FuzzyGraph graph(workers, edges.keyed(), {});
    const std::vector<LayoutPoint> points = spectral_layout(workers, graph, 7, {});
    const float sign = points.front().x < points.back().x ? 1 : -1;
    for (size_t i = 0; i + 1 < points.size(); ++i)
        EXPECT_LT(sign * points[i].x, sign * points[i + 1].x + 0.05) << i;
    EXPECT_GT(std::abs(points.front().x - points.back().x), 10);
}

TEST(GraphLayout, KeepsNeighborhoodsAndPartsClusters) {
    std::mt19937 random(test_seed());
    constexpr size_t count = 400, dims = 8;
    const std::vector<float> rows = clustered_rows(random, count, dims, 5);
    const std::vector<LayoutPoint> points = layout_of(exact_graph(rows, dims, 10), {});
    ASSERT_EQ(points.size(), count);
    EXPECT_GT(trustworthiness(rows, dims, points, 5), 0.95);
    // Others are of no use to it.
    std::vector<LayoutPoint> shuffled = points;
    std::shuffle(shuffled.begin(), shuffled.end(), random);
    EXPECT_LT(trustworthiness(rows, dims, shuffled, 5), 0.6);
}

TEST(GraphLayout, IsTheSameOnAnyThreadsAndInAnyOrder) {
    std::mt19937 random(test_seed());
    constexpr size_t count = 3000;
    // A graph of more than one task: neighbors along a curve.
    Edges edges;
    const std::vector<float> distances = normal_floats(random, count * 4);
    for (size_t i = 0; i < count; ++i)
        for (size_t j = 1; j <= 4; ++j)
            edges.add(static_cast<int64_t>(i) - 1000,
                      static_cast<int64_t>((i + j * j) % count) - 1000,
                      1 + std::abs(distances[i * 4 + j - 1]));
    LayoutOptions options;
    options.epochs = 20;
    options.seed = 5;
    const std::vector<LayoutPoint> first = layout_of(edges, options, 1);
    ASSERT_EQ(first.size(), count);
    for (const LayoutPoint& point : first)
        ASSERT_TRUE(std::isfinite(point.x) && std::isfinite(point.y));
    EXPECT_TRUE(same(first, layout_of(edges, options, 2)));
    EXPECT_TRUE(same(first, layout_of(edges, options, 5)));
    edges.shuffle(random);
    EXPECT_TRUE(same(first, layout_of(edges, options, 3)));
    options.seed = 6;
    EXPECT_FALSE(same(first, layout_of(edges, options, 2)));
}

// Components that have nothing to do with each other lie apart.
TEST(GraphLayout, PartsComponents) {
    std::mt19937 random(test_seed());
    Edges edges;
    constexpr size_t each = 60;
    for (int64_t component = 0; component < 4; ++component) {
        const Edges own = exact_graph(normal_floats(random, each * 4), 4, 12);
        for (size_t i = 0; i < own.src.size(); ++i)
            edges.add(own.src[i] + 1000 * component, own.dst[i] + 1000 * component,
                      own.distance[i]);
    }
    const std::vector<LayoutPoint> points = layout_of(edges, {});
    std::vector<float> flat;
    for (const LayoutPoint& point : points) flat.insert(flat.end(), {point.x, point.y});
    size_t inside = 0;
    for (size_t i = 0; i < points.size(); ++i) {
        const std::vector<uint32_t> order = ranked(flat, 2, i);
        for (size_t j = 0; j < 10; ++j) inside += order[j] / each == i / each;
    }
    EXPECT_GT(inside, points.size() * 10 * 99 / 100);
}

TEST(GraphLayout, TakesGraphsThatHardlyAreAny) {
    EXPECT_TRUE(layout_of({}, {}).empty());
    Edges edges;
    edges.add(1, 1, 0);
    EXPECT_EQ(layout_of(edges, {}).size(), 1u);
    edges.add(2, 3, std::numeric_limits<float>::infinity());
    EXPECT_EQ(layout_of(edges, {}).size(), 3u);
    // Twins, negative distances as of inner products, and the ends of the range of keys.
    for (int64_t i = 0; i < 30; ++i) edges.add(i, (i + 1) % 30, 0);
    edges.add(4, 7, -3);
    edges.add(4, 8, -1);
    edges.add(std::numeric_limits<int64_t>::min(), std::numeric_limits<int64_t>::max(),
              std::numeric_limits<float>::max());
    const std::vector<LayoutPoint> points = layout_of(edges, {});
    EXPECT_EQ(points.size(), 32u);
    for (const LayoutPoint& point : points)
        EXPECT_TRUE(std::isfinite(point.x) && std::isfinite(point.y));
}

TEST(GraphLayout, EndsWhenInterrupted) {
    std::mt19937 random(test_seed());
    const Edges edges = exact_graph(normal_floats(random, 300), 3, 5);
    Workers workers(2);
    const FuzzyGraph graph(workers, edges.keyed(), {});
    const volatile std::sig_atomic_t raised = 1;
    EXPECT_THROW(layout(workers, graph, {}, Interrupts(&raised)), Interrupted);
    Workers interrupted(2, Interrupts(&raised));
    EXPECT_THROW(layout(interrupted, graph, {}, {}), Interrupted);
}

}  // namespace
}  // namespace pgwarp
