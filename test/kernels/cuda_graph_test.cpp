// k-NN graphs on the device: NN-Descent, merge and append by recall floors; interrupts, progress
// and memory of all builders.

#include "kernels/cuda/graph/hash.h"
#include "kernels/cuda/graph/trees.h"
#include "test/kernels/cuda_graph_check.h"

namespace pgwarp::gpu {
namespace {

TEST(GraphHash, ScatterIsUndone) {
    std::mt19937 random(test_seed());
    for (int i = 0; i < 100000; ++i) {
        const auto x = static_cast<uint32_t>(random());
        ASSERT_EQ(gather(scatter(x)), x);
    }
    for (uint32_t x : {0u, 1u, 0x7ffffffeu, 0xffffffffu}) ASSERT_EQ(gather(scatter(x)), x);
}

TEST(GraphGroups, PlacesAreInTheirGroups) {
    std::mt19937 random(test_seed());
    for (int round = 0; round < 200; ++round) {
        const auto count = static_cast<uint32_t>(between(random, 1, round % 2 ? 3000 : 2000000000));
        for (uint32_t level = 0; level < 11; ++level)
            for (int i = 0; i < 20; ++i) {
                const auto place = static_cast<uint32_t>(between(random, 0, count - 1));
                const uint32_t group = group_of(place, level, count);
                ASSERT_LT(group, 1u << level);
                ASSERT_LE(group_begin(group, level, count), place);
                ASSERT_GT(group_begin(group + 1, level, count), place);
            }
    }
}

TEST_F(CudaGraph, DescentReachesItsRecall) {
    OnDevice device(options());
    const uint64_t base = random();
    // The second count is divisible by the degree, the third a power of two.
    for (size_t count : {5003, 5600, 8192})
        for (Metric metric : all_metrics) {
            // Of products the neighbors are the longest rows: those are of about equal length here.
            const bool equal = metric == Metric::inner_product;
            const Made made(surface_rows(random, count, 40), 40, equal ? Metric::cosine : metric);
            const_cast<Made&>(made).rows.metric = metric;
            for (uint64_t seed = base; seed < base + 5; ++seed) {
                SCOPED_TRACE(testing::Message() << count << " rows, seed " << seed << ", metric "
                                                << static_cast<int>(metric));
                const auto options = options_for(10, seed);
                auto lists = made.unset_lists(options.degree);
                device->descend(made.rows, options, lists.data());
                expect_sound(made, lists, options.degree, options.degree, false);
                EXPECT_GE(recall(made, lists, options.degree, 10), 0.97);
                if (small_tests()) break;
            }
            if (small_tests()) break;
        }
}

TEST_F(CudaGraph, DescentOfAllShapes) {
    OnDevice device(options());
    for (uint32_t dims : {1u, 3u, 65u, 130u, 300u})
        for (uint32_t k : {1u, 10u, 60u, 200u}) {
            if (small_tests() && (k > 60 || dims > 65)) continue;
            const Made made(surface_rows(random, 5000, dims, 6), dims, Metric::l2);
            auto options = options_for(k, 1);
            if (dims == 65) options.samples = 30, options.degree = std::max(options.degree, 60u);
            auto lists = made.unset_lists(options.degree);
            device->descend(made.rows, options, lists.data());
            SCOPED_TRACE(testing::Message() << dims << " dims, k " << k);
            expect_sound(made, lists, options.degree, options.degree, false);
            // On a line all trees are cut at the same places, the CPU's too.
            EXPECT_GE(recall(made, lists, options.degree, k, 50), dims == 1 ? 0.7 : 0.95);
        }
}

TEST_F(CudaGraph, DescentNeedsNoTrees) {
    OnDevice device(options());
    const Made made(surface_rows(random, 6000, 40), 40, Metric::l2);
    for (uint64_t seed = 1; seed <= 5; ++seed) {
        auto options = options_for(10, seed);
        options.trees = 0;
        options.iterations = 20;
        auto lists = made.unset_lists(options.degree);
        device->descend(made.rows, options, lists.data());
        expect_sound(made, lists, options.degree, options.degree, false);
        EXPECT_GE(recall(made, lists, options.degree, 10), 0.97) << "seed " << seed;
        if (small_tests()) break;
    }
}

// Chance decides, not the order in which blocks come.
TEST_F(CudaGraph, DescentRepeats) {
    OnDevice device(options());
    const Made made(surface_rows(random, 9000, 30), 30, Metric::l2);
    const auto options = options_for(10, 5);
    auto one = made.unset_lists(options.degree), two = one;
    device->descend(made.rows, options, one.data());
    device->descend(made.rows, options, two.data());
    for (size_t i = 0; i < one.size(); ++i) {
        ASSERT_EQ(one[i].row, two[i].row) << i;
        ASSERT_EQ(one[i].distance, two[i].distance) << i;
    }
}

TEST_F(CudaGraph, SmallSetsAreExact) {
    OnDevice device(options());
    for (size_t count = 1; count <= 60; count += small_tests() ? 13 : 1) {
        const Made made(whole_floats(random, count * 4, 2), 4, Metric::l2);
        const auto options = options_for(static_cast<uint32_t>(between(random, 1, 30)), count);
        auto lists = made.unset_lists(options.degree);
        device->descend(made.rows, options, lists.data());
        expect_sound(made, lists, options.degree, options.degree, false);
        const auto truth = made.exact(options.neighbors);
        for (size_t row = 0; row < count; ++row)
            for (uint32_t i = 0; i < options.neighbors; ++i)
                ASSERT_EQ(lists[row * options.degree + i].row,
                          truth[row * options.neighbors + i].row)
                    << count << " rows, " << row << ", place " << i;
    }
}

TEST_F(CudaGraph, EqualRowsHaveFullLists) {
    OnDevice device(options());
    for (Metric metric : all_metrics)
        for (size_t count : {1500, 6000}) {
            const Made made(std::vector<float>(count * 7, 0.25f), 7, metric);
            const auto options = options_for(10, 3);
            auto lists = made.unset_lists(options.degree);
            device->descend(made.rows, options, lists.data());
            expect_sound(made, lists, options.degree, options.degree, false);
            for (size_t row = 0; row < count; ++row)
                for (uint32_t i = 0; i < 10; ++i)
                    ASSERT_NE(lists[row * options.degree + i].row, no_row) << row;
            const auto all = exact(device, made, 10);
            expect_sound(made, all, 10, 10, false);
            for (const Edge& edge : all) ASSERT_NE(edge.row, no_row);
        }
}

// Each row thrice: the twins are the first two of every list.
TEST_F(CudaGraph, TwinsAreFound) {
    OnDevice device(options());
    auto values = surface_rows(random, 2000, 20);
    const auto once = values;
    for (int copy = 0; copy < 2; ++copy) values.insert(values.end(), once.begin(), once.end());
    const Made made(values, 20, Metric::l2);
    for (uint64_t seed = 1; seed <= 5; ++seed) {
        const auto options = options_for(5, seed);
        auto lists = made.unset_lists(options.degree);
        device->descend(made.rows, options, lists.data());
        expect_sound(made, lists, options.degree, options.degree, false);
        size_t found = 0;
        for (size_t row = 0; row < 6000; ++row)
            for (int i = 0; i < 2; ++i) found += lists[row * options.degree + i].distance == 0;
        EXPECT_GE(found, 11900u) << "seed " << seed;
        if (small_tests()) break;
    }
}

TEST_F(CudaGraph, DescentHoldsFarFromTheOrigin) {
    OnDevice device(options());
    auto values = surface_rows(random, 6000, 24);
    for (float& value : values) value += 5000;
    const Made made(values, 24, Metric::l2);
    for (uint64_t seed = 1; seed <= 5; ++seed) {
        const auto options = options_for(10, seed);
        auto lists = made.unset_lists(options.degree);
        device->descend(made.rows, options, lists.data());
        EXPECT_GE(recall(made, lists, options.degree, 10), 0.97) << "seed " << seed;
        if (small_tests()) break;
    }
}

TEST_F(CudaGraph, MergeIsAsGoodAsTheWhole) {
    OnDevice device(options());
    for (Metric metric : {Metric::l2, Metric::cosine, Metric::l1}) {
        const Made made(surface_rows(random, 9600, 40), 40, metric);
        for (size_t first : {4800, 8000, 1, 0, 9600})
            for (uint64_t seed = 1; seed <= 5; ++seed) {
                SCOPED_TRACE(testing::Message() << "border " << first << ", seed " << seed);
                const auto options = options_for(10, seed);
                auto lists = parts_of(device, made, first, options, true);
                device->merge(made.rows, first, options, lists.data());
                expect_sound(made, lists, options.degree, options.degree, false);
                EXPECT_GE(recall(made, lists, options.degree, 10, 100), 0.965);
                if (small_tests()) break;
            }
        if (small_tests()) break;
    }
}

// No pair of one set is compared: an edge within a set was there before.
TEST_F(CudaGraph, MergeComparesAcrossOnly) {
    OnDevice device(options());
    const Made made(surface_rows(random, 6000, 30), 30, Metric::l2);
    const auto options = options_for(10, 1);
    auto lists = parts_of(device, made, 3000, options, true);
    const auto before = lists;
    const DescentReport merged = device->merge(made.rows, 3000, options, lists.data());
    auto whole = made.unset_lists(options.degree);
    EXPECT_LT(merged.compared, device->descend(made.rows, options, whole.data()).compared / 2);
    for (size_t row = 0; row < 6000; ++row)
        for (uint32_t i = 0; i < options.neighbors; ++i) {
            const Edge& edge = lists[row * options.degree + i];
            if ((edge.row < 3000) != (row < 3000)) continue;
            const Edge* list = before.data() + row * options.degree;
            ASSERT_TRUE(std::any_of(list, list + options.degree,
                                    [&](const Edge& old) { return old.row == edge.row; }));
        }
}

TEST_F(CudaGraph, MergeTakesShortLists) {
    OnDevice device(options());
    const Made made(surface_rows(random, 6000, 30), 30, Metric::l2);
    for (uint64_t seed = 1; seed <= 5; ++seed) {
        const auto options = options_for(10, seed);
        auto lists = parts_of(device, made, 1500, options, true);
        for (size_t i = 0; i < lists.size(); ++i)
            if (i % options.degree >= 10) lists[i] = {infinity, no_row};
        device->merge(made.rows, 1500, options, lists.data());
        expect_sound(made, lists, options.degree, options.degree, false);
        EXPECT_GE(recall(made, lists, options.degree, 10), 0.965) << "seed " << seed;
        if (small_tests()) break;
    }
}

TEST_F(CudaGraph, AppendIsAsGoodAsTheWhole) {
    OnDevice device(options());
    for (Metric metric : {Metric::l2, Metric::cosine}) {
        const Made made(surface_rows(random, 9600, 40), 40, metric);
        for (size_t first : {9599, 9100, 4800, 20, 0, 9600})
            for (uint64_t seed = 1; seed <= 5; ++seed) {
                SCOPED_TRACE(testing::Message() << "border " << first << ", seed " << seed);
                const auto options = options_for(10, seed);
                auto lists = parts_of(device, made, first, options, false);
                device->append(made.rows, first, options, lists.data());
                expect_sound(made, lists, options.degree, options.degree, false);
                EXPECT_GE(recall(made, lists, options.degree, 10, 100), 0.965);
                if (small_tests()) break;
            }
        if (small_tests()) break;
    }
}

TEST_F(CudaGraph, InterruptEndsIt) {
    static volatile std::sig_atomic_t raised = 1;
    DeviceOptions told = options();
    told.interrupts = {nullptr, &raised};
    OnDevice device(told);
    const Made made(surface_rows(random, 6000, 30), 30, Metric::l2);
    const auto options = options_for(10, 1);
    auto lists = made.unset_lists(options.degree);
    const auto before = lists;
    EXPECT_THROW(device->exact(made.rows, 10, lists.data()), Interrupted);
    EXPECT_THROW(device->exact_merge(made.rows, 10, 10, lists.data()), Interrupted);
    EXPECT_THROW(device->descend(made.rows, options, lists.data()), Interrupted);
    EXPECT_THROW(device->merge(made.rows, 1000, options, lists.data()), Interrupted);
    EXPECT_THROW(device->append(made.rows, 1000, options, lists.data()), Interrupted);
    raised = 0;
    device->descend(made.rows, options, lists.data());
    EXPECT_GE(recall(made, lists, options.degree, 10), 0.97);
}

// In the middle of the work, from its own reports.
TEST_F(CudaGraph, InterruptEndsIterations) {
    static volatile std::sig_atomic_t raised = 0;
    DeviceOptions told = options();
    told.interrupts = &raised;
    OnDevice device(told);
    const Made made(surface_rows(random, 6000, 30), 30, Metric::l2);
    const auto options = options_for(10, 1);
    for (GraphPhase phase : {GraphPhase::start, GraphPhase::descent, GraphPhase::distances}) {
        auto lists = made.unset_lists(options.degree);
        device->progress = [&](GraphPhase now, uint64_t, uint64_t) {
            if (now == phase) raised = 1;
        };
        EXPECT_THROW(device->descend(made.rows, options, lists.data()), Interrupted);
        raised = 0;
        for (const Edge& edge : lists) ASSERT_EQ(edge.row, no_row);
    }
    EXPECT_EQ(device.context.memory.use().used, 0u);
}

TEST_F(CudaGraph, ProgressGoesForward) {
    OnDevice device(options());
    const Made made(surface_rows(random, 6000, 20), 20, Metric::l2);
    std::vector<std::pair<GraphPhase, uint64_t>> seen;
    device->progress = [&](GraphPhase phase, uint64_t done, uint64_t total) {
        EXPECT_LE(done, total);
        const bool on = !seen.empty() && seen.back().first == phase;
        EXPECT_TRUE(!on || done > seen.back().second) << done;
        seen.emplace_back(phase, done);
    };
    const auto options = options_for(10, 1);
    auto lists = made.unset_lists(options.degree);
    device->descend(made.rows, options, lists.data());
    ASSERT_FALSE(seen.empty());
    EXPECT_EQ(seen.front().first, GraphPhase::start);
    EXPECT_EQ(seen.back().first, GraphPhase::distances);
    seen.clear();
    device->exact(made.rows, 10, lists.data());
    ASSERT_FALSE(seen.empty());
    EXPECT_EQ(seen.back().second, 6000u);
}

// What there is no room for is said, nothing is lost, and there is room again.
TEST_F(CudaGraph, MemoryIsBounded) {
    OnDevice device(options(size_t{3} << 20));
    const Made made(surface_rows(random, 6000, 30), 30, Metric::l2);
    const auto options = options_for(10, 1);
    auto lists = made.unset_lists(options.degree);
    EXPECT_THROW(device->descend(made.rows, options, lists.data()), OutOfDeviceMemory);
    for (const Edge& edge : lists) ASSERT_EQ(edge.row, no_row);
    EXPECT_EQ(device.context.memory.use().used, 0u);
    const size_t most = device->most_rows(30, options);
    EXPECT_LT(most, 6000u);
    EXPECT_GT(most, 1000u);
    // The number of rows it has room for.
    OnDevice large(CudaTest::options(size_t{64} << 20));
    const size_t fits = large->most_rows(30, options);
    ASSERT_GT(fits, 8192u);
    const Made full(surface_rows(random, fits, 30), 30, Metric::l2);
    auto all = full.unset_lists(options.degree);
    large->descend(full.rows, options, all.data());
    EXPECT_GE(recall(full, all, options.degree, 10, 50), 0.95);
    large->exact(full.rows, 10, all.data());
}

// Squares that overflow are the CPU's: nothing is changed.
TEST_F(CudaGraph, TooLongRowsAreRefused) {
    OnDevice device(options());
    auto values = pgwarp::normal_floats(random, 300 * 3);
    values[5] = 3e38f;
    const Made made(values, 3, Metric::l2);
    auto lists = made.unset_lists(10);
    EXPECT_THROW(device->exact(made.rows, 10, lists.data()), DeviceFailure);
    for (const Edge& edge : lists) ASSERT_EQ(edge.row, no_row);
}

TEST_F(CudaGraph, NumbersOfAllSizes) {
    OnDevice device(options());
    for (float scale : {1e-12f, 1e-3f, 1e12f}) {
        auto values = surface_rows(random, 5000, 16);
        for (float& value : values) value *= scale;
        const Made made(values, 16, Metric::l2);
        const auto options = options_for(10, 1);
        auto lists = made.unset_lists(options.degree);
        device->descend(made.rows, options, lists.data());
        EXPECT_GE(recall(made, lists, options.degree, 10), 0.97) << scale;
        EXPECT_EQ(recall(made, exact(device, made, 10), 10, 10), 1) << scale;
    }
}

// Little data, for tools that check every access.
TEST_F(CudaGraph, EveryKernelOnce) {
    OnDevice device(options());
    for (Metric metric : {Metric::l2, Metric::l1})
        for (uint32_t k : {3u, 70u}) {
            const Made made(surface_rows(random, 4600, 9, 4), 9, metric);
            auto options = options_for(k, 1);
            options.iterations = 2;
            options.trees = 2;
            auto lists = parts_of(device, made, 4400, options, true);
            device->merge(made.rows, 4400, options, lists.data());
            expect_sound(made, lists, options.degree, options.degree, false);
        }
    for (uint32_t dims : {30u, 60u, 90u, 120u}) {
        const Made made(pgwarp::normal_floats(random, 2100 * dims), dims, Metric::l2);
        auto lists = exact(device, made, 4);
        expect_exact(made, lists, 4);
        // No row is new.
        device->exact_merge(made.rows, 2100, 4, lists.data());
        expect_exact(made, lists, 4);
        // All are: the second set has all but one row.
        auto others = made.unset_lists(4);
        device->exact({made.rows.row(1), 2099, dims, Metric::l2}, 4, others.data() + 4);
        for (Edge& edge : others)
            if (edge.row != no_row) ++edge.row;
        device->exact_merge(made.rows, 1, 4, others.data());
        expect_exact(made, others, 4);
    }
    for (uint32_t degree : {40u, 300u}) {
        const Made made(pgwarp::normal_floats(random, 700 * 5), 5, Metric::l1);
        expect_exact(made, exact(device, made, degree), degree);
    }
}

}  // namespace
}  // namespace pgwarp::gpu
