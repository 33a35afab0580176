// k-NN graphs: exact ones against float64, NN-Descent, merge and append by recall floors.

#include "kernels/knn_graph.h"

#include "kernels/cpu/graph_tile.h"
#include "kernels/workers.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include <gtest/gtest.h>
#include "test/kernels/every_target.h"
#include "test/kernels/graph_check.h"

namespace pgwarp {
namespace {

class KnnGraph : public testing::Test {
  protected:
    std::mt19937 random{test_seed()};
};

class EveryGraphTarget : public EveryTarget {
  protected:
    void SetUp() override {
        EveryTarget::SetUp();
        choose_tile_target();
    }
    void TearDown() override {
        EveryTarget::TearDown();
        choose_tile_target();
    }
};
PGWARP_EVERY_TARGET(EveryGraphTarget);

TEST_P(EveryGraphTarget, TilesAreRight) {
    for (int round = 0; round < 40; ++round) {
        const auto dims = static_cast<uint32_t>(between(random, 1, round % 4 == 0 ? 900 : 70));
        const size_t a_rows = between(random, 1, 37), b_rows = between(random, 1, 37);
        const bool triangle = round % 3 == 0;
        const Metric metric = all_metrics[round % std::size(all_metrics)];
        const size_t count = triangle ? a_rows : a_rows + b_rows;
        const Made made(normal_floats(random, 100 * dims, 3), dims, metric);
        SCOPED_TRACE(testing::Message() << "dims " << dims << ", " << a_rows << " with " << b_rows
                                        << ", metric " << static_cast<int>(metric));
        std::vector<uint32_t> numbers(count);
        for (uint32_t& number : numbers) number = static_cast<uint32_t>(between(random, 0, 99));
        const size_t stride = tile_stride(dims);
        std::vector<float> data((count + 8) * stride, 1e30f), terms(count + 8);
        gather_tile(made.rows, numbers.data(), count, made.rows.row(numbers[0]), data.data(),
                    terms.data());
        const size_t b_begin = triangle ? 0 : a_rows, columns = triangle ? a_rows : b_rows;
        const size_t out_stride = columns + 4;
        std::vector<float> values((a_rows + 4) * out_stride);
        tile_values({data.data(), a_rows, data.data() + b_begin * stride, columns, stride, metric,
                     triangle, values.data(), out_stride});
        for (size_t i = 0; i < a_rows; ++i)
            for (size_t j = triangle ? i + 1 : 0; j < columns; ++j) {
                const size_t a = numbers[i], b = numbers[b_begin + j];
                const double slack =
                    16 * made.rounding(a, b) +
                    64 * 0x1p-24 * (std::fabs(terms[i]) + std::fabs(terms[b_begin + j]));
                EXPECT_NEAR(values[i * out_stride + j] + terms[i] + terms[b_begin + j],
                            made.distance(a, b), slack);
            }
    }
}

TEST_F(KnnGraph, ExactIsExact) {
    for (size_t count : {1, 2, 3, 30, 511, 512, 513, 1100})
        for (Metric metric : all_metrics) {
            const auto dims = static_cast<uint32_t>(between(random, 1, 90));
            const auto degree = static_cast<uint32_t>(between(random, 1, 40));
            const Made made(normal_floats(random, count * dims), dims, metric);
            SCOPED_TRACE(testing::Message() << count << " x " << dims << ", degree " << degree
                                            << ", metric " << static_cast<int>(metric));
            const auto lists = made.exact(degree);
            expect_sound(made, lists, degree, degree);
            for (size_t row = 0; row < count; row += 1 + count / 50) {
                const auto truth = made.sorted(row);
                for (uint32_t i = 0; i < degree; ++i) {
                    const Edge& edge = lists[row * degree + i];
                    if (i >= truth.size()) {
                        EXPECT_EQ(edge.row, no_row);
                        continue;
                    }
                    ASSERT_NE(edge.row, no_row);
                    EXPECT_NEAR(edge.distance, truth[i].first, made.rounding(row, truth[i].second));
                }
            }
        }
}

// Whole numbers have exact distances: every place is decided, by row number among equals.
TEST_F(KnnGraph, ExactBreaksTiesByRow) {
    for (Metric metric : {Metric::l2, Metric::inner_product, Metric::l1}) {
        const uint32_t dims = 5, degree = 12;
        const Made made(whole_floats(random, 1300 * dims, 2), dims, metric);
        const auto lists = made.exact(degree, 3);
        for (size_t row = 0; row < made.rows.count; row += 7) {
            const auto truth = made.sorted(row);
            for (uint32_t i = 0; i < degree; ++i) {
                const Edge& edge = lists[row * degree + i];
                ASSERT_EQ(edge.distance, truth[i].first) << "row " << row << ", place " << i;
                ASSERT_EQ(edge.row, truth[i].second) << "row " << row << ", place " << i;
            }
        }
    }
}

// Two parts and what lies between them are the whole.
TEST_F(KnnGraph, ExactPartsMakeTheWhole) {
    for (Metric metric : all_metrics)
        for (size_t first : {1, 512, 700, 1299}) {
            const uint32_t dims = 9, degree = 12;
            const Made made(whole_floats(random, 1300 * dims, 3), dims, metric);
            const auto whole = made.exact(degree);
            auto parts = made.unset_lists(degree);
            auto builder = make_cpu_graph_builder(2, {});
            const GraphRows& rows = made.rows;
            builder->exact({rows.rows, first, dims, metric}, degree, parts.data());
            builder->exact({rows.row(first), rows.count - first, dims, metric}, degree,
                           parts.data() + first * degree);
            for (size_t i = first * degree; i < parts.size(); ++i)
                if (parts[i].row != no_row) parts[i].row += static_cast<uint32_t>(first);
            builder->exact_merge(rows, first, degree, parts.data());
            for (size_t i = 0; i < whole.size(); ++i) {
                ASSERT_EQ(parts[i].row, whole[i].row) << "border " << first << ", edge " << i;
                ASSERT_EQ(parts[i].distance, whole[i].distance);
            }
        }
}

TEST_F(KnnGraph, ExactHoldsFarFromTheOrigin) {
    const uint32_t dims = 24, degree = 10;
    auto values = normal_floats(random, 700 * dims);
    for (float& value : values) value += 3000;
    const Made made(values, dims, Metric::l2);
    const auto lists = made.exact(degree);
    expect_sound(made, lists, degree, degree);
    EXPECT_EQ(recall(made, lists, degree, degree), 1);
}

TEST_F(KnnGraph, DescentReachesItsRecall) {
    const uint64_t base = random();
    // The second count is divisible by the degree, the third by leaf and batch.
    for (size_t count : {5003, 4800, 4096})
        for (Metric metric : {Metric::l2, Metric::cosine, Metric::l1}) {
            const Made made(surface_rows(random, count, 40), 40, metric);
            for (uint64_t seed = base; seed < base + 2; ++seed) {
                SCOPED_TRACE(testing::Message() << count << " rows, seed " << seed << ", metric "
                                                << static_cast<int>(metric));
                const auto options = options_for(10, seed);
                const auto lists = made.descended(options);
                expect_sound(made, lists, options.degree, options.neighbors);
                EXPECT_GE(recall(made, lists, options.degree, 10), 0.97);
            }
        }
}

// The paper's start: no tree, lists of chance.
TEST_F(KnnGraph, DescentNeedsNoTrees) {
    const Made made(surface_rows(random, 4000, 40), 40, Metric::l2);
    for (uint64_t seed = 1; seed <= 2; ++seed) {
        auto options = options_for(10, seed);
        options.trees = 0;
        options.iterations = 20;
        const auto lists = made.descended(options);
        expect_sound(made, lists, options.degree, options.neighbors);
        EXPECT_GE(recall(made, lists, options.degree, 10), 0.97) << "seed " << seed;
    }
}

TEST_F(KnnGraph, DescentFindsLargeProducts) {
    // Rows of about equal length, as embeddings are.
    auto values = surface_rows(random, 4000, 40);
    for (size_t i = 0; i < 4000; ++i) {
        float* row = values.data() + i * 40;
        const double norm = std::sqrt(reference_product(row, row, 40));
        const double length = 1 + 0.01 * static_cast<double>(between(random, 0, 10));
        for (int d = 0; d < 40; ++d) row[d] = static_cast<float>(row[d] * length / norm);
    }
    const Made made(values, 40, Metric::inner_product);
    for (uint64_t seed = 1; seed <= 2; ++seed) {
        const auto options = options_for(10, seed);
        const auto lists = made.descended(options);
        expect_sound(made, lists, options.degree, options.neighbors);
        EXPECT_GE(recall(made, lists, options.degree, 10), 0.95) << "seed " << seed;
    }
}

TEST_F(KnnGraph, ThreadsDoNotMatter) {
    const Made made(surface_rows(random, 5000, 30), 30, Metric::l2);
    const auto options = options_for(10, 5);
    const auto one = made.descended(options, 1), again = made.descended(options, 1);
    const auto three = made.descended(options, 3);
    ASSERT_EQ(one.size(), three.size());
    for (size_t i = 0; i < one.size(); ++i) {
        ASSERT_EQ(one[i].row, again[i].row) << i;
        ASSERT_EQ(one[i].row, three[i].row) << i;
        ASSERT_EQ(one[i].distance, three[i].distance) << i;
    }
}

TEST_F(KnnGraph, SmallSetsAreExact) {
    for (size_t count = 1; count <= 60; ++count) {
        const Made made(whole_floats(random, count * 4, 2), 4, Metric::l2);
        const auto options = options_for(static_cast<uint32_t>(between(random, 1, 30)), count);
        const auto lists = made.descended(options);
        expect_sound(made, lists, options.degree, options.neighbors);
        const auto truth = made.exact(options.neighbors);
        for (size_t row = 0; row < count; ++row)
            for (uint32_t i = 0; i < options.neighbors; ++i)
                ASSERT_EQ(lists[row * options.degree + i].row,
                          truth[row * options.neighbors + i].row)
                    << count << " rows, " << row << ", place " << i;
    }
}

TEST_F(KnnGraph, EqualRowsHaveFullLists) {
    for (Metric metric : all_metrics) {
        const Made made(std::vector<float>(1500 * 7, 0.25f), 7, metric);
        const auto options = options_for(10, 3);
        const auto lists = made.descended(options);
        expect_sound(made, lists, options.degree, options.neighbors);
        for (size_t row = 0; row < made.rows.count; ++row)
            for (uint32_t i = 0; i < 10; ++i)
                ASSERT_NE(lists[row * options.degree + i].row, no_row) << row;
        expect_sound(made, made.exact(10), 10, 10);
    }
}

// Each row thrice: the twins are the first two of every list.
TEST_F(KnnGraph, TwinsAreFound) {
    auto values = surface_rows(random, 1000, 20);
    const auto once = values;
    for (int copy = 0; copy < 2; ++copy) values.insert(values.end(), once.begin(), once.end());
    const Made made(values, 20, Metric::l2);
    for (uint64_t seed = 1; seed <= 2; ++seed) {
        const auto options = options_for(5, seed);
        const auto lists = made.descended(options);
        expect_sound(made, lists, options.degree, options.neighbors);
        size_t found = 0;
        for (size_t row = 0; row < 3000; ++row)
            for (int i = 0; i < 2; ++i) found += lists[row * options.degree + i].distance == 0;
        EXPECT_GE(found, 5950u) << "seed " << seed;
    }
}

TEST_F(KnnGraph, DescentHoldsFarFromTheOrigin) {
    auto values = surface_rows(random, 3000, 24);
    for (float& value : values) value += 5000;
    const Made made(values, 24, Metric::l2);
    for (uint64_t seed = 1; seed <= 2; ++seed) {
        const auto options = options_for(10, seed);
        EXPECT_GE(recall(made, made.descended(options), options.degree, 10), 0.97)
            << "seed " << seed;
    }
}

// Two graphs of parts of the rows, side by side, with numbers in the whole.
std::vector<Edge> parts_of(const Made& made, size_t first, const DescentOptions& options,
                           bool second_too) {
    auto lists = made.unset_lists(options.degree);
    auto builder = make_cpu_graph_builder(2, {});
    const GraphRows& rows = made.rows;
    builder->descend({rows.rows, first, rows.dims, rows.metric}, options, lists.data());
    if (!second_too) return lists;
    Edge* second = lists.data() + first * options.degree;
    builder->descend({rows.row(first), rows.count - first, rows.dims, rows.metric}, options,
                     second);
    for (Edge* edge = second; edge != lists.data() + lists.size(); ++edge)
        if (edge->row != no_row) edge->row += static_cast<uint32_t>(first);
    return lists;
}

TEST_F(KnnGraph, MergeIsAsGoodAsTheWhole) {
    for (Metric metric : {Metric::l2, Metric::cosine, Metric::l1}) {
        const Made made(surface_rows(random, 4800, 40), 40, metric);
        for (size_t first : {2400, 4000, 1})
            for (uint64_t seed = 1; seed <= 2; ++seed) {
                SCOPED_TRACE(testing::Message() << "border " << first << ", seed " << seed);
                const auto options = options_for(10, seed);
                auto lists = parts_of(made, first, options, true);
                make_cpu_graph_builder(2, {})->merge(made.rows, first, options, lists.data());
                expect_sound(made, lists, options.degree, options.neighbors);
                EXPECT_GE(recall(made, lists, options.degree, 10), 0.965);
            }
    }
}

// A few rows beside many: they have their neighbors, and are found by the others.
TEST_F(KnnGraph, MergeOfAFewIsAsGood) {
    const Made made(surface_rows(random, 12000, 40, 16), 40, Metric::l2);
    for (const size_t first : {11950, 50}) {
        const auto options = options_for(10, 1);
        auto lists = parts_of(made, first, options, true);
        make_cpu_graph_builder(2, {})->merge(made.rows, first, options, lists.data());
        size_t hits = 0;
        for (size_t i = 0; i < 50; ++i) {
            const size_t row = first == 50 ? i : first + i;
            const double farthest = made.sorted(row)[9].first;
            for (uint32_t place = 0; place < 10; ++place) {
                const Edge& edge = lists[row * options.degree + place];
                hits += edge.row != no_row && made.distance(row, edge.row) <= farthest * 1.000001;
            }
        }
        EXPECT_GE(static_cast<double>(hits) / 500, 0.93) << "border " << first;
    }
}

TEST_F(KnnGraph, AppendIsAsGoodAsTheWhole) {
    for (Metric metric : {Metric::l2, Metric::cosine}) {
        const Made made(surface_rows(random, 4800, 40), 40, metric);
        for (size_t first : {4799, 4560, 2400, 20})
            for (uint64_t seed = 1; seed <= 2; ++seed) {
                SCOPED_TRACE(testing::Message() << "border " << first << ", seed " << seed);
                const auto options = options_for(10, seed);
                auto lists = parts_of(made, first, options, false);
                make_cpu_graph_builder(2, {})->append(made.rows, first, options, lists.data());
                expect_sound(made, lists, options.degree, options.neighbors);
                EXPECT_GE(recall(made, lists, options.degree, 10), 0.965);
            }
    }
}

// Lists that come from a table hold k places, not all that a descent has.
TEST_F(KnnGraph, MergeTakesShortLists) {
    const Made made(surface_rows(random, 4000, 30), 30, Metric::l2);
    for (uint64_t seed = 1; seed <= 2; ++seed) {
        const auto options = options_for(10, seed);
        auto lists = parts_of(made, 1500, options, true);
        for (size_t i = 0; i < lists.size(); ++i)
            if (i % options.degree >= 10) lists[i] = {infinity, no_row};
        make_cpu_graph_builder(2, {})->merge(made.rows, 1500, options, lists.data());
        expect_sound(made, lists, options.degree, options.neighbors);
        EXPECT_GE(recall(made, lists, options.degree, 10), 0.965) << "seed " << seed;
    }
}

// A merge compares no pair of one set: what it says it compared is far less than a descent.
TEST_F(KnnGraph, MergeComparesAcrossOnly) {
    const Made made(surface_rows(random, 4000, 30), 30, Metric::l2);
    const auto options = options_for(10, 1);
    auto lists = parts_of(made, 2000, options, true);
    const auto before = lists;
    auto builder = make_cpu_graph_builder(1, {});
    const DescentReport merged = builder->merge(made.rows, 2000, options, lists.data());
    auto whole = made.unset_lists(options.degree);
    const DescentReport descended = builder->descend(made.rows, options, whole.data());
    EXPECT_LT(merged.compared, descended.compared / 2);
    // An edge within a set was there before.
    for (size_t row = 0; row < 4000; ++row)
        for (uint32_t i = 0; i < options.neighbors; ++i) {
            const Edge& edge = lists[row * options.degree + i];
            if ((edge.row < 2000) != (row < 2000)) continue;
            const Edge* list = before.data() + row * options.degree;
            ASSERT_TRUE(std::any_of(list, list + options.degree,
                                    [&](const Edge& old) { return old.row == edge.row; }));
        }
}

TEST_F(KnnGraph, InterruptEndsIt) {
    const Made made(surface_rows(random, 3000, 30), 30, Metric::l2);
    const volatile std::sig_atomic_t raised = 1;
    const auto options = options_for(10, 1);
    auto lists = made.unset_lists(options.degree);
    auto builder = make_cpu_graph_builder(2, {nullptr, &raised});
    EXPECT_THROW(builder->exact(made.rows, 10, lists.data()), Interrupted);
    EXPECT_THROW(builder->descend(made.rows, options, lists.data()), Interrupted);
    EXPECT_THROW(builder->merge(made.rows, 1000, options, lists.data()), Interrupted);
    EXPECT_THROW(builder->append(made.rows, 1000, options, lists.data()), Interrupted);
}

// Values whose squares overflow are far, and neighbors all the same.
TEST_F(KnnGraph, OverflowLosesNobody) {
    auto values = normal_floats(random, 300 * 3);
    for (size_t i = 0; i < 20 * 3; ++i) values[i] = (i % 2 ? 3e38f : -3e38f);
    const Made made(values, 3, Metric::l2);
    const auto options = options_for(10, 1);
    for (const auto& [lists, degree] :
         {std::pair{made.exact(10), 10u}, std::pair{made.descended(options), options.degree}})
        for (size_t row = 0; row < 300; ++row)
            for (uint32_t i = 0; i < 10; ++i)
                ASSERT_NE(lists[row * degree + i].row, no_row) << row << ", " << i;
}

TEST_F(KnnGraph, ProgressGoesForward) {
    const Made made(surface_rows(random, 6000, 20), 20, Metric::l2);
    auto builder = make_cpu_graph_builder(2, {});
    std::vector<std::pair<GraphPhase, uint64_t>> seen;
    builder->progress = [&](GraphPhase phase, uint64_t done, uint64_t total) {
        EXPECT_LE(done, total);
        const bool on = !seen.empty() && seen.back().first == phase;
        EXPECT_TRUE(!on || done > seen.back().second) << done;
        seen.emplace_back(phase, done);
    };
    const auto options = options_for(10, 1);
    auto lists = made.unset_lists(options.degree);
    builder->descend(made.rows, options, lists.data());
    EXPECT_EQ(seen.front().first, GraphPhase::start);
    EXPECT_EQ(seen.back().first, GraphPhase::distances);
    seen.clear();
    builder->exact(made.rows, 10, lists.data());
    EXPECT_GT(seen.size(), 5u);
}

}  // namespace
}  // namespace pgwarp
