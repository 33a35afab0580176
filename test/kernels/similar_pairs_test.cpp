// Pairs of rows within a bound: all of them, against distances in float64.

#include "kernels/similar_pairs.h"

#include "kernels/cpu/pair_filter.h"
#include "kernels/cpu/products.h"
#include "kernels/distance.h"
#include "kernels/failing_device.h"
#include "kernels/fallback_graph_builder.h"
#include "kernels/graph_builder_group.h"
#include "kernels/stand_in_device.h"
#include "kernels/workers.h"

#include <algorithm>
#include <csignal>
#include <map>
#include <vector>

#include <gtest/gtest.h>
#include "test/kernels/graph_check.h"
#include "test/kernels/seed.h"

namespace pgwarp {
namespace {

using Found = std::map<std::pair<uint32_t, uint32_t>, float>;

class SimilarPairs : public testing::Test {
  protected:
    std::mt19937 random{test_seed()};

    // Some rows are near others, some equal; most of the variance is in a few directions.
    std::vector<float> rows_with_duplicates(size_t count, uint32_t dims, float offset = 0) {
        std::vector<float> rows = normal_floats(random, count * dims);
        for (size_t i = 0; i < rows.size(); ++i)
            rows[i] = offset + rows[i] / (1 + 0.1f * static_cast<float>(i % dims));
        for (size_t row = 1; row < count; row += 3) {
            const size_t other = between(random, 0, row - 1);
            const float far = row % 2 == 0 ? 0.0f : 0.02f * static_cast<float>(row % 7);
            for (uint32_t d = 0; d < dims; ++d)
                rows[row * dims + d] = rows[other * dims + d] + far * (d % 2 == 0 ? 0.1f : -0.1f);
        }
        return rows;
    }
    // A bound that about this share of all pairs meets.
    static float bound_of(const Made& made, double share) {
        std::vector<float> distances;
        for (size_t a = 0; a < made.rows.count; a += 7)
            for (size_t b = a + 1; b < made.rows.count; b += 3)
                distances.push_back(static_cast<float>(made.distance(a, b)));
        auto at = distances.begin() +
                  static_cast<std::ptrdiff_t>(share * static_cast<double>(distances.size()));
        std::nth_element(distances.begin(), at, distances.end());
        return *at;
    }
    static void add(const std::vector<RowPair>& pairs, Found* found) {
        for (const RowPair& pair : pairs) {
            EXPECT_LT(pair.first, pair.second);
            EXPECT_TRUE(found->emplace(std::pair(pair.first, pair.second), pair.distance).second)
                << pair.first << " and " << pair.second << " twice";
        }
    }
    // All pairs, by rectangles of this side.
    static Found find_all(PairFinder& finder, size_t count, size_t side) {
        Found found;
        std::vector<RowPair> pairs;
        for (size_t a = 0; a < count; a += side)
            for (size_t b = a; b < count; b += side) {
                EXPECT_TRUE(
                    finder.find({{a, std::min(count, a + side)}, {b, std::min(count, b + side)}},
                                side * side, &pairs));
                add(pairs, &found);
            }
        return found;
    }
    // Every pair that is certainly within the bound, none that is certainly beyond it.
    static void expect_right(const Made& made, float bound, const Found& found) {
        size_t expected = 0;
        // Float64 is slow: of many rows, every few are compared with all.
        const auto step = static_cast<uint32_t>(1 + made.rows.count / 300);
        for (uint32_t a = 0; a < made.rows.count; a += step)
            for (uint32_t b = a + 1; b < made.rows.count; ++b) {
                const double distance = made.distance(a, b), slack = made.rounding(a, b);
                const auto at = found.find({a, b});
                if (distance + slack < bound) {
                    ++expected;
                    ASSERT_NE(at, found.end()) << a << " and " << b << " at " << distance;
                }
                if (distance - slack > bound) {
                    ASSERT_EQ(at, found.end()) << a << " and " << b;
                }
                if (at != found.end()) {
                    ASSERT_NEAR(at->second, distance, slack);
                }
            }
        EXPECT_GT(expected, 0u);
    }
};

TEST_F(SimilarPairs, AreAllPairsWithinTheBound) {
    for (const size_t count : {2, 3, 511, 513, 1100})
        for (const Metric metric : all_metrics) {
            const auto dims = static_cast<uint32_t>(between(random, 1, 90));
            std::vector<float> values = rows_with_duplicates(count, dims);
            if (count == 2) std::copy_n(values.begin(), dims, values.begin() + dims);
            const Made made(std::move(values), dims, metric);
            const float bound = count < 10 ? 1e6f : bound_of(made, 0.01);
            SCOPED_TRACE(testing::Message() << count << " x " << dims << ", " << sql_name(metric));
            const auto builder = make_cpu_graph_builder(2, {});
            const auto finder = builder->find_pairs(made.rows, bound);
            expect_right(made, bound, find_all(*finder, count, count));
            expect_right(made, bound, find_all(*finder, count, 300));
        }
}

// Enough rows for a filter of fewer dimensions, which must not change the result.
TEST_F(SimilarPairs, DoNotDependOnTheFilter) {
    for (const Metric metric : {Metric::l2, Metric::inner_product, Metric::cosine})
        for (const float offset : {0.0f, 3.0f}) {
            const Made made(rows_with_duplicates(4500, 64, offset), 64, metric);
            const float bound = bound_of(made, 0.0005);
            SCOPED_TRACE(testing::Message() << sql_name(metric) << ", offset " << offset);
            Workers workers(2);
            const PairFilter filter = make_pair_filter(workers, made.rows, PairSearch(bound));
            if (metric != Metric::inner_product) {
                EXPECT_LT(filter.dims, made.rows.dims);
            }
            const auto finder = make_cpu_pair_finder(workers, made.rows, bound);
            expect_right(made, bound, find_all(*finder, made.rows.count, 2000));
        }
}

// Finders of parts share what takes longer than to compare two parts.
TEST_F(SimilarPairs, ArePlannedOnceForAllParts) {
    for (const Metric metric : {Metric::l2, Metric::inner_product, Metric::cosine}) {
        const Made made(rows_with_duplicates(4000, 96, 1), 96, metric);
        const float bound = bound_of(made, 0.0005);
        Workers workers(2);
        const PairWork work = {96, metric, 4000.0 * 3999 / 2, 16000};
        const size_t wanted = pair_sample_rows(work, 2, size_t{1} << 26);
        ASSERT_GE(wanted, 4000u);
        const auto plan = make_pair_plan(workers, made.rows, bound, work);
        if (metric != Metric::inner_product) {
            EXPECT_GT(plan->width, 0u);
        }
        Found found;
        std::vector<RowPair> pairs;
        for (const size_t first : {0, 1000, 2000, 3000}) {
            const GraphRows part{made.rows.row(first), 1000, 96, metric};
            // Alone, no part is worth a plan.
            EXPECT_EQ(make_pair_filter(workers, part, PairSearch(bound)).dims, 96u);
            const GraphRows rest{made.rows.row(first), made.rows.count - first, 96, metric};
            const auto finder = make_cpu_pair_finder(workers, rest, {bound, plan});
            for (const RowSpan& other : {RowSpan{0, 1000}, RowSpan{1000, rest.count}}) {
                EXPECT_TRUE(finder->find({{0, 1000}, other}, size_t{1} << 30, &pairs));
                for (RowPair& pair : pairs) {
                    pair.first += static_cast<uint32_t>(first);
                    pair.second += static_cast<uint32_t>(first);
                }
                add(pairs, &found);
            }
        }
        expect_right(made, bound, found);
    }
}

// Directions take time and memory that grow with the square and the cube of the dimensions.
TEST(PairPlan, IsMadeWhereItPays) {
    constexpr size_t memory = size_t{1} << 30;
    const auto sample = [](uint32_t dims, double rows, size_t bytes = size_t{1} << 30) {
        return pair_sample_rows({dims, Metric::l2, rows * (rows - 1) / 2, rows}, 1, bytes);
    };
    EXPECT_EQ(sample(128, 20000), 8192u);
    EXPECT_EQ(sample(128, 1000), 0u);
    EXPECT_EQ(sample(1536, 4500), 0u);
    EXPECT_EQ(sample(1536, 1e6), 8192u);
    EXPECT_EQ(sample(4096, 1e6), 0u) << "LAPACK cannot be interrupted";
    EXPECT_EQ(sample(1536, 1e6, size_t{16} << 20), 0u) << "no room for a matrix";
    const size_t fewer = sample(1536, 1e6, size_t{64} << 20);
    EXPECT_GE(fewer, 1024u);
    EXPECT_LT(fewer, 8192u);
    EXPECT_EQ(pair_sample_rows({128, Metric::l1, 1e12, 1e6}, 1, memory), 0u);
    Workers workers(1);
    EXPECT_EQ(make_pair_plan(workers, {}, 1, {1536, Metric::l2, 1e12, 1e6})->width, 0u);
}

TEST_F(SimilarPairs, FiltersBoundEveryDistance) {
    for (const Metric metric : {Metric::l2, Metric::inner_product, Metric::cosine})
        for (const uint32_t dims : {20u, 200u}) {
            const Made made(rows_with_duplicates(300, dims, 1), dims, metric);
            Workers workers(1);
            for (const uint32_t width : {2u, 8u, 16u}) {
                const PairPlan plan{width, find_directions(workers, made.rows, width - 1)};
                const PairFilter filter = make_pair_filter(workers, made.rows, plan);
                ASSERT_EQ(filter.dims, width);
                ASSERT_EQ(filter.low.size(), made.rows.count);
                double best = 0, all = 0;
                for (size_t a = 0; a < made.rows.count; ++a)
                    for (size_t b = 0; b < a; ++b) {
                        const float low =
                            filter.low[a] + filter.low[b] +
                            filter.factor * dot_product(filter.vector(a), filter.vector(b), width);
                        ASSERT_LE(low,
                                  graph_distance(metric, made.rows.row(a), made.rows.row(b), dims));
                        best += low;
                        all += made.distance(a, b);
                    }
                // It is worth something, too.
                if (metric == Metric::l2) {
                    EXPECT_GT(best, 0.1 * all);
                }
            }
        }
}

TEST_F(SimilarPairs, TellWhenThereAreTooMany) {
    const std::vector<float> equal(700 * 5, 1.5f);
    const GraphRows rows{equal.data(), 700, 5, Metric::l2};
    const auto builder = make_cpu_graph_builder(2, {});
    const auto finder = builder->find_pairs(rows, 0.5f);
    std::vector<RowPair> pairs;
    EXPECT_FALSE(finder->find({{0, 700}, {0, 700}}, 700 * 699 / 2 - 1, &pairs));
    EXPECT_TRUE(finder->find({{0, 700}, {0, 700}}, 700 * 699 / 2, &pairs));
    EXPECT_EQ(pairs.size(), size_t{700} * 699 / 2);
    EXPECT_FALSE(finder->find({{0, 10}, {20, 30}}, 99, &pairs));
    EXPECT_TRUE(finder->find({{20, 30}, {0, 10}}, 100, &pairs));
    EXPECT_EQ(pairs.size(), 100u);
    EXPECT_EQ(pairs[0].first, 0u);
    EXPECT_EQ(pairs[0].second, 20u);
}

// Norms, products and distances overflow, or are NaN.
TEST_F(SimilarPairs, HoldWithHugeValues) {
    const uint32_t count = 4200;
    for (const Metric metric : {Metric::l2, Metric::inner_product, Metric::l1}) {
        std::vector<float> values = rows_with_duplicates(count, 32);
        for (size_t row = 0; row < count; row += 350)
            for (uint32_t d = 0; d < 32; ++d)
                values[row * 32 + d] *= row % 700 == 0 ? 3e30f : 1e18f;
        // Equal, and so large that the norm is infinite.
        std::copy_n(values.begin(), 32, values.end() - 32);
        values[77 * 32] = std::numeric_limits<float>::quiet_NaN();
        const GraphRows rows{values.data(), count, 32, metric};
        const float bound = metric == Metric::inner_product ? -20.0f : 0.01f;
        Found expected;
        for (uint32_t a = 0; a < count; ++a)
            for (uint32_t b = a + 1; b < count; ++b)
                if (const float d = graph_distance(metric, rows.row(a), rows.row(b), 32);
                    d <= bound)
                    expected[{a, b}] = d;
        EXPECT_EQ(expected.count({0, count - 1}), 1u);
        Workers workers(2);
        const auto finder = make_cpu_pair_finder(workers, rows, bound);
        const Found found = find_all(*finder, count, 1000);
        EXPECT_TRUE(found == expected)
            << sql_name(metric) << ": " << found.size() << " of " << expected.size();
    }
}

TEST_F(SimilarPairs, EndWhenInterrupted) {
    const Made made(rows_with_duplicates(3000, 16), 16, Metric::l2);
    volatile std::sig_atomic_t flag = 0;
    const auto builder = make_cpu_graph_builder(2, Interrupts(&flag));
    const auto finder = builder->find_pairs(made.rows, 0.1f);
    std::vector<RowPair> pairs;
    flag = 1;
    EXPECT_THROW(finder->find({{0, 3000}, {0, 3000}}, 10000000, &pairs), Interrupted);
    flag = 0;
    EXPECT_TRUE(finder->find({{0, 3000}, {0, 3000}}, 10000000, &pairs));
}

// A device that fails in the middle: the CPU begins with the rectangle it failed at.
TEST_F(SimilarPairs, GoOnWithoutTheDevice) {
    const Made made(rows_with_duplicates(900, 12), 12, Metric::l2);
    const Found expected =
        find_all(*make_cpu_graph_builder(1, {})->find_pairs(made.rows, 0.2f), 900, 900);
    const auto make_cpu = [] { return make_cpu_graph_builder(1, {}); };
    for (const Fault kind : {Fault::failed, Fault::lost, Fault::out_of_memory, Fault::late})
        for (const int good_calls : {0, 1, 3, 100})
            for (const bool several : {false, true}) {
                volatile int fault = static_cast<int>(Fault::none);
                std::vector<std::unique_ptr<Device>> devices;
                std::vector<std::unique_ptr<GraphBuilder>> members;
                for (int i = 0; i < (several ? 2 : 1); ++i) {
                    devices.push_back(make_failing_device(make_stand_in_device(1, size_t{1} << 30),
                                                          &fault, good_calls));
                    members.push_back(devices.back()->make_graph_builder());
                }
                std::unique_ptr<GraphBuilder> builder;
                if (several)
                    builder = std::make_unique<GraphBuilderGroup>(std::move(members), make_cpu);
                else
                    builder =
                        std::make_unique<FallbackGraphBuilder>(std::move(members[0]), make_cpu);
                fault = static_cast<int>(kind);
                const auto finder = builder->find_pairs(made.rows, 0.2f);
                EXPECT_EQ(find_all(*finder, 900, 300), expected)
                    << static_cast<int>(kind) << " after " << good_calls;
                EXPECT_EQ(std::string(builder->name()) == "cpu", good_calls < 100);
            }
}

}  // namespace
}  // namespace pgwarp
