// Several devices as one executor: what one device makes of the same rows, however they are
// dealt out, and also where one of them fails.

#include "kernels/executor_group.h"

#include "kernels/failing_device.h"
#include "kernels/fallback_executor.h"
#include "kernels/kmeans.h"
#include "kernels/stand_in_device.h"
#include "test/kernels/row_pass_check.h"
#include "test/kernels/seed.h"

#include <atomic>
#include <csignal>
#include <random>
#include <gtest/gtest.h>

namespace pgwarp {
namespace {

constexpr size_t budget = size_t{1} << 30;

// Devices, and one executor of them. Those of `failing` have the fault.
struct Group {
    volatile int fault = static_cast<int>(Fault::none);
    std::vector<std::unique_ptr<Device>> devices;
    std::vector<FallbackExecutor*> fallbacks;
    std::unique_ptr<Executor> executor;

    // `each_other`: they fall back to each other, not to the CPU.
    Group(size_t count, size_t failing, bool falls_back, int good_calls = 0,
          const Interrupts& interrupts = {}, bool each_other = false) {
        std::vector<std::unique_ptr<Executor>> members;
        for (size_t i = 0; i < count; ++i) {
            auto device = make_stand_in_device(1, budget, interrupts);
            if (i == failing) device = make_failing_device(std::move(device), &fault, good_calls);
            auto member = device->make_executor();
            if (falls_back && !each_other) {
                auto fallback = std::make_unique<FallbackExecutor>(std::move(member), cpu, cpu);
                fallbacks.push_back(fallback.get());
                member = std::move(fallback);
            }
            devices.push_back(std::move(device));
            members.push_back(std::move(member));
        }
        if (each_other) fallbacks = fall_back_to_each_other(members);
        executor = make_executor_group(std::move(members));
    }
    static std::unique_ptr<Executor> cpu() { return make_cpu_executor(1, {}); }
};
constexpr size_t none = 99;

TEST(ExecutorGroup, PassesGiveWhatOneExecutorGives) {
    std::mt19937 random(test_seed());
    for (const size_t devices : {1, 2, 3, 5})
        for (PassCase c : pass_cases()) {
            c.report_nearest = false;
            const PassData data(c, random);
            const Group group(devices, none, devices % 2 == 0);
            EXPECT_EQ(group.executor->most_in_flight(), devices * RowPass::max_in_flight);
            expect_same_pass(c, data, run_pass(*group.executor, c, data), expected_pass(c, data));
        }
}

TEST(ExecutorGroup, HasANameOfAll) {
    EXPECT_STREQ(Group(2, none, false).executor->name(), "2 x host");
    EXPECT_EQ(name_of_group({"one", "other"}), "one, other");
    EXPECT_THROW(make_executor_group({}), std::logic_error);
}

// At any call, either device: no row is lost, none comes twice, and the one that works gets the
// rest.
TEST(ExecutorGroup, PassesGoOnWhereADeviceFails) {
    std::mt19937 random(test_seed());
    const PassCase c{.rows = 9000, .block_rows = 200};
    const PassData data(c, random);
    const PassResults expected = expected_pass(c, data);
    for (const Fault fault : {Fault::failed, Fault::lost, Fault::out_of_memory, Fault::late})
        for (const size_t failing : {0, 1})
            for (const int good : {0, 1, 2, 5, 11, 20, 30, 31, 70}) {
                const bool each_other = good % 5 != 0;
                Group group(2, failing, true, good, {}, each_other);
                group.fault = static_cast<int>(fault);
                SCOPED_TRACE(testing::Message() << "fault " << static_cast<int>(fault) << " of "
                                                << failing << " after " << good);
                expect_same_pass(c, data, run_pass(*group.executor, c, data), expected);
                EXPECT_TRUE(group.fallbacks[failing]->failed());
                EXPECT_FALSE(group.fallbacks[1 - failing]->failed());
                EXPECT_FALSE(group.executor->failed());
            }
    // All of them: the CPU.
    Group group(1, 0, true, 4);
    group.fault = static_cast<int>(Fault::failed);
    expect_same_pass(c, data, run_pass(*group.executor, c, data), expected);
    EXPECT_TRUE(group.executor->failed());
}

TEST(ExecutorGroup, PassesThrowFailuresThatNobodyTakes) {
    std::mt19937 random(test_seed());
    const PassCase c{.rows = 2000, .block_rows = 200};
    const PassData data(c, random);
    Group group(2, 1, false, 3);
    group.fault = static_cast<int>(Fault::failed);
    EXPECT_THROW(run_pass(*group.executor, c, data), DeviceFailure);
    EXPECT_TRUE(group.executor->drop_failed());
    expect_same_pass(c, data, run_pass(*group.executor, c, data), expected_pass(c, data));
    // Also the first, which does what is not dealt out.
    Group first(2, 0, false);
    first.fault = static_cast<int>(Fault::failed);
    std::vector<float> rows(10, 1.0f);
    EXPECT_THROW(first.executor->take(rows.data(), 5, 2), DeviceFailure);
    EXPECT_TRUE(first.executor->drop_failed());
    const auto taken = first.executor->take(rows.data(), 5, 2);
    EXPECT_EQ(first.executor->variance({*taken, 5}), 0);
}

// A block whose start() was interrupted is not part of the pass, and one whose finish() was comes
// with the next.
TEST(ExecutorGroup, PassesGoOnAfterAnInterrupt) {
    std::mt19937 random(test_seed());
    const PassCase c{.lists = 40, .rows = 700, .queries = 3, .block_rows = 100};
    const PassData data(c, random);
    volatile std::sig_atomic_t interrupt = 0;
    const Group group(2, none, false, 0, &interrupt);
    const Quantizer quantizer = data.quantizer(c);
    const RowPassInput input = pass_input(c, data, quantizer);
    const auto pass = group.executor->begin_pass(input);
    for (size_t first = 0; first < c.rows; first += c.block_rows)
        pass->start(data.rows.data() + first * c.dims, data.ids.data() + first, c.block_rows);
    const PassResults expected = expected_pass(c, data);
    for (size_t first = 0; first < c.rows; first += c.block_rows) {
        interrupt = 1;
        EXPECT_THROW(pass->finish(), Interrupted);
        interrupt = 0;
        const PassedBlock block = pass->finish();
        ASSERT_EQ(block.count, c.block_rows);
        EXPECT_TRUE(std::equal(block.lists, block.lists + block.count,
                               expected.lists.begin() + static_cast<ptrdiff_t>(first)));
    }
    EXPECT_THROW(pass->finish(), std::logic_error);
    std::vector<Neighbor> nearest(c.found());
    pass->nearest(nearest.data());
    expect_same_neighbors(c, nearest, expected.nearest);
}

TEST(ExecutorGroup, RefusesTooManyBlocks) {
    const Group group(2, none, false);
    RowPassInput input;
    input.dims = 1;
    input.block_rows = 1;
    const auto pass = group.executor->begin_pass(input);
    const float row = 1;
    const uint64_t id = 1;
    for (size_t i = 0; i < group.executor->most_in_flight(); ++i) pass->start(&row, &id, 1);
    EXPECT_THROW(pass->start(&row, &id, 1), std::logic_error);
    input.report_nearest = true;
    EXPECT_THROW(group.executor->begin_pass(input), std::logic_error);
}

// --- clusterings

struct Clustered {
    std::vector<float> centroids;
    std::vector<uint32_t> nearest;
    std::vector<double> errors;
};

constexpr uint32_t dims = 6;

Clustered cluster(Executor& executor, Dataset& rows, size_t count, uint32_t clusters) {
    Clustered c;
    c.centroids.resize(clusters * dims);
    c.nearest.resize(count);
    executor.kmeans_start(rows, clusters, 7, c.centroids.data());
    for (int i = 0; i < 4; ++i)
        c.errors.push_back(executor.kmeans_step(rows, clusters, c.centroids.data()));
    executor.assign(rows, clusters, c.centroids.data(), c.nearest.data());
    return c;
}

// Blocks of any size in any order; small integers, so that sums do not depend on their order.
TEST(ExecutorGroup, ClustersAsOneDeviceDoes) {
    std::mt19937 random(test_seed());
    std::uniform_int_distribution<int> whole(-9, 9);
    for (const size_t count : {37, 600, 5000})
        for (const size_t devices : {1, 2, 3})
            for (const uint32_t clusters : {1u, 5u, 30u}) {
                SCOPED_TRACE(testing::Message() << count << " rows, " << devices << " devices, "
                                                << clusters << " clusters");
                // Many equal rows, so that clusters become empty.
                std::vector<float> rows(count * dims);
                for (size_t i = 0; i < count; ++i)
                    for (uint32_t d = 0; d < dims; ++d)
                        rows[i * dims + d] = i % 3 == 0 ? 4.0f : static_cast<float>(whole(random));
                std::vector<size_t> begins;
                for (size_t first = 0; first < count;
                     first += 1 + static_cast<size_t>(whole(random) + 9) * 3)
                    begins.push_back(first);
                std::vector<size_t> order(begins.size());
                for (size_t i = 0; i < order.size(); ++i) order[i] = i;
                std::shuffle(order.begin(), order.end(), random);

                const auto cpu = make_cpu_executor(1, {});
                const auto taken = cpu->take(rows.data(), count, dims);
                const Clustered expected = cluster(*cpu, *taken, count, clusters);

                const Group group(devices, none, false);
                const auto builder =
                    group.executor->build_dataset(dims, count, RowElements::float32);
                // Two buffers: the one before the last may change.
                std::vector<float> buffers[2];
                for (size_t i = 0; i < order.size(); ++i) {
                    const size_t first = begins[order[i]];
                    const size_t end = order[i] + 1 < begins.size() ? begins[order[i] + 1] : count;
                    buffers[i % 2].assign(rows.begin() + static_cast<ptrdiff_t>(first * dims),
                                          rows.begin() + static_cast<ptrdiff_t>(end * dims));
                    builder->add(order[i], buffers[i % 2].data(), end - first);
                }
                EXPECT_EQ(builder->count(), count);
                EXPECT_THROW(builder->add(count, rows.data(), 1), std::length_error);
                const auto data = builder->finish();
                const Clustered found = cluster(*group.executor, *data, count, clusters);
                EXPECT_EQ(found.centroids, expected.centroids);
                EXPECT_EQ(found.nearest, expected.nearest);
                for (size_t i = 0; i < found.errors.size(); ++i)
                    EXPECT_NEAR(found.errors[i], expected.errors[i], 1e-5 * expected.errors[0]);
            }
}

TEST(ExecutorGroup, OnlyClustersDealtRows) {
    const Group group(2, none, false);
    std::vector<float> rows(40 * dims, 1.0f);
    const auto builder = group.executor->build_dataset(dims, 40, RowElements::float32);
    builder->add(0, rows.data(), 40);
    const auto dealt = builder->finish();
    EXPECT_THROW(group.executor->make_residuals(*dealt, 1, rows.data()), std::runtime_error);
    // Rows that it took are on one device, where all is possible.
    const auto taken = group.executor->take(rows.data(), 40, dims);
    group.executor->make_residuals(*taken, 1, rows.data());
    EXPECT_EQ(group.executor->variance({*taken, 40}), 0);
}

TEST(ExecutorGroup, ClusteringsThrowFailures) {
    for (const int good : {0, 1, 2, 3, 4}) {
        Group group(2, 1, false, good);
        group.fault = static_cast<int>(Fault::failed);
        std::vector<float> rows(40 * dims, 1.0f);
        const auto all = [&] {
            const auto builder = group.executor->build_dataset(dims, 40, RowElements::float32);
            builder->add(0, rows.data(), 20);
            builder->add(1, rows.data(), 20);
            const auto data = builder->finish();
            cluster(*group.executor, *data, 40, 3);
        };
        EXPECT_THROW(all(), DeviceFailure) << good;
        // The others can do it.
        EXPECT_TRUE(group.executor->drop_failed());
        EXPECT_EQ(group.executor->most_in_flight(), RowPass::max_in_flight);
        all();
        EXPECT_FALSE(group.executor->drop_failed());
    }
    Group alone(1, 0, false);
    alone.fault = static_cast<int>(Fault::failed);
    EXPECT_THROW(alone.executor->build_dataset(dims, 40, RowElements::float32), DeviceFailure);
    EXPECT_FALSE(alone.executor->drop_failed()) << "there is no other";
}

}  // namespace
}  // namespace pgwarp
