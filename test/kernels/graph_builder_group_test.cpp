// Several devices as one graph builder: the lists of one device, also where some of them fail.

#include "kernels/graph_builder_group.h"

#include "kernels/failing_device.h"
#include "kernels/stand_in_device.h"
#include "test/kernels/graph_check.h"
#include "test/kernels/seed.h"

#include <atomic>
#include <chrono>
#include <gtest/gtest.h>
#include <numeric>
#include <random>
#include <thread>

namespace pgwarp {
namespace {

std::unique_ptr<GraphBuilder> cpu() {
    return make_cpu_graph_builder(1, {});
}

// Devices, and one builder of them.
struct Group {
    volatile int fault = static_cast<int>(Fault::none);
    std::vector<std::unique_ptr<Device>> devices;
    std::vector<size_t> left;
    std::unique_ptr<GraphBuilderGroup> builder;

    // Device i fails after good_calls[i] calls; a negative number: never.
    Group(const std::vector<int>& good_calls, bool falls_back, size_t budget = size_t{1} << 30) {
        std::vector<std::unique_ptr<GraphBuilder>> members;
        for (const int good : good_calls) {
            auto device = make_stand_in_device(1, budget);
            if (good >= 0) device = make_failing_device(std::move(device), &fault, good);
            devices.push_back(std::move(device));
            members.push_back(devices.back()->make_graph_builder());
        }
        builder = std::make_unique<GraphBuilderGroup>(
            std::move(members), falls_back ? cpu : GraphBuilderGroup::MakeBuilder(),
            [this](size_t member) { left.push_back(member); });
    }
};

// Any part of an exact graph, with and without a border, whichever tiles it is cut into.
TEST(ExactPart, IsAPartOfTheWhole) {
    std::mt19937 random(test_seed());
    for (const Metric metric : all_metrics) {
        const Made made(surface_rows(random, 1400, 9), 9, metric);
        constexpr uint32_t degree = 7;
        for (const size_t first : {size_t{0}, size_t{1}, size_t{700}, size_t{1399}}) {
            auto whole = made.unset_lists(degree);
            const auto builder = make_cpu_graph_builder(2, {});
            builder->exact_part(made.rows, first, {0, made.rows.count}, degree, whole.data());
            for (const RowSpan part : {RowSpan{0, 1}, RowSpan{0, 512}, RowSpan{300, 1100},
                                       RowSpan{699, 701}, RowSpan{1399, 1400}, RowSpan{5, 5}}) {
                std::vector<Edge> lists(part.size() * degree, Edge{infinity, no_row});
                builder->exact_part(made.rows, first, part, degree, lists.data());
                expect_same(lists, {whole.begin() + static_cast<ptrdiff_t>(part.begin * degree),
                                    whole.begin() + static_cast<ptrdiff_t>(part.end * degree)});
            }
        }
    }
}

TEST(GraphBuilderGroup, MakesTheGraphsOfOneDevice) {
    std::mt19937 random(test_seed());
    for (const size_t count : {1, 2, 40, 900}) {
        const Made made(surface_rows(random, count, 12), 12, Metric::l2);
        const auto graphs = [&](GraphBuilder& builder) {
            return make_all_graphs(builder, made.rows, count / 3, options_for(5, 3));
        };
        const auto truth = graphs(*cpu());
        for (const size_t devices : {1, 2, 3}) {
            Group group(std::vector<int>(devices, -1), true);
            const auto found = graphs(*group.builder);
            for (size_t i = 0; i < truth.size(); ++i) {
                SCOPED_TRACE(testing::Message()
                             << count << " rows, " << devices << " devices, graph " << i);
                expect_same(found[i], truth[i]);
            }
            EXPECT_EQ(group.builder->failure(), "");
        }
    }
}

TEST(GraphBuilderGroup, OthersDoTheWorkOfADeviceThatFails) {
    std::mt19937 random(test_seed());
    const Made made(surface_rows(random, 700, 12), 12, Metric::l2);
    const auto graphs = [&](GraphBuilder& builder) {
        return make_all_graphs(builder, made.rows, 300, options_for(5, 3));
    };
    const auto truth = graphs(*cpu());
    for (const Fault fault :
         {Fault::failed, Fault::lost, Fault::out_of_memory, Fault::no_host_memory, Fault::late})
        for (const std::vector<int>& good : {std::vector<int>{0, -1},
                                             {-1, 0},
                                             {2, -1},
                                             {3, -1},
                                             {-1, 1, 1},
                                             {0, 0},
                                             {2, 1},
                                             {4, 2, 3}}) {
            Group group(good, true);
            group.fault = static_cast<int>(fault);
            SCOPED_TRACE(testing::Message() << "fault " << static_cast<int>(fault) << ", "
                                            << testing::PrintToString(good));
            const auto found = graphs(*group.builder);
            for (size_t i = 0; i < truth.size(); ++i) expect_same(found[i], truth[i]);
            EXPECT_NE(group.builder->failure(), "");
            std::sort(group.left.begin(), group.left.end());
            std::vector<size_t> expected;
            for (size_t i = 0; i < good.size(); ++i)
                if (good[i] >= 0) expected.push_back(i);
            EXPECT_EQ(group.left, expected);
            EXPECT_STREQ(group.builder->name(), expected.size() == good.size() ? "cpu"
                                                : good.size() == 2             ? "2 x host"
                                                                               : "3 x host");
        }
}

TEST(GraphBuilderGroup, ThrowsTheLastFailureWhereTheCpuMustNot) {
    std::mt19937 random(test_seed());
    const Made made(surface_rows(random, 100, 4), 4, Metric::l2);
    auto lists = made.unset_lists(5);
    Group one({0, -1}, false);
    one.fault = static_cast<int>(Fault::failed);
    one.builder->exact(made.rows, 5, lists.data());
    expect_same(lists, made.exact(5));
    Group both({0, 0}, false);
    both.fault = static_cast<int>(Fault::failed);
    EXPECT_THROW(both.builder->exact(made.rows, 5, lists.data()), DeviceFailure);
    EXPECT_THROW(both.builder->exact(made.rows, 5, lists.data()), DeviceFailure);
}

// A device with room for the fewest rows decides how many fit. Progress ends with all rows, and
// comes from the caller's thread.
TEST(GraphBuilderGroup, ReportsForAll) {
    std::mt19937 random(test_seed());
    const Made made(surface_rows(random, 800, 12), 12, Metric::l2);
    Group group({-1, -1}, true, size_t{1} << 20);
    const auto options = options_for(5, 3);
    EXPECT_EQ(
        group.builder->most_rows(12, options),
        make_stand_in_device(1, size_t{1} << 20)->make_graph_builder()->most_rows(12, options));
    uint64_t last = 0, last_total = 0;
    bool elsewhere = false;
    const auto caller = std::this_thread::get_id();
    group.builder->progress = [&](GraphPhase, uint64_t done, uint64_t total) {
        elsewhere |= std::this_thread::get_id() != caller;
        last = done, last_total = total;
    };
    auto lists = made.unset_lists(5);
    group.builder->exact(made.rows, 5, lists.data());
    EXPECT_EQ(last, 800u);
    EXPECT_EQ(last_total, 800u);
    EXPECT_FALSE(elsewhere);
}

// Rows in parts, each with a graph of its own, and every two of them merged: as the caller of
// GraphTasks makes them.
struct PartedRows {
    static constexpr size_t parts = 5;
    const Made& made;
    DescentOptions options;
    bool exact;
    std::vector<std::vector<Edge>> lists;  // of parts, then of pairs

    size_t begin(size_t part) const { return made.rows.count * part / parts; }
    GraphTask task(size_t first, size_t second, std::vector<Edge>* to) const {
        const GraphRows rows{made.rows.row(begin(first)), begin(second + 1) - begin(first),
                             made.rows.dims, made.rows.metric};
        to->assign(rows.count * options.degree, Edge{infinity, no_row});
        return {rows, first == second ? 0 : begin(first + 1) - begin(first), exact, options,
                to->data()};
    }
    // Pairs are of neighbors, whose rows follow each other.
    template <typename Start, typename Finish>
    void make(const Start& start, const Finish& finish) {
        lists.assign(2 * parts - 1, {});
        for (size_t i = 0; i < parts; ++i) start(i, task(i, i, &lists[i]));
        finish(parts);
        for (size_t i = 0; i + 1 < parts; ++i) {
            std::vector<Edge>& pair = lists[parts + i];
            const GraphTask both = task(i, i + 1, &pair);
            std::copy(lists[i].begin(), lists[i].end(), pair.begin());
            for (size_t e = 0; e < lists[i + 1].size(); ++e) {
                Edge edge = lists[i + 1][e];
                if (edge.row != no_row) edge.row += static_cast<uint32_t>(both.first);
                pair[lists[i].size() + e] = edge;
            }
            start(parts + i, both);
        }
        finish(parts - 1);
    }
    void make_on(GraphBuilder& builder) {
        make([&](size_t, const GraphTask& task) { run_graph_task(builder, task); }, [](size_t) {});
    }
    // Returns the numbers that finish() has returned.
    std::vector<size_t> make_on(GraphBuilderGroup& group) {
        GraphTasks tasks(group);
        std::vector<size_t> done;
        make([&](size_t number, const GraphTask& task) { tasks.start(number, task); },
             [&](size_t count) {
                 for (size_t i = 0; i < count; ++i) done.push_back(tasks.finish());
             });
        std::sort(done.begin(), done.end());
        return done;
    }
};

TEST(GraphTasks, AreDoneOnceWhicheverDevicesFail) {
    std::mt19937 random(test_seed());
    const Made made(surface_rows(random, 1500, 12), 12, Metric::l2);
    for (const bool exact : {false, true}) {
        PartedRows truth{made, options_for(5, 3), exact, {}};
        truth.make_on(*cpu());
        for (const Fault fault : {Fault::none, Fault::failed, Fault::late, Fault::no_host_memory})
            for (const std::vector<int>& good : {std::vector<int>{-1},
                                                 {-1, -1},
                                                 {-1, -1, -1},
                                                 {0, -1},
                                                 {-1, 2},
                                                 {1, -1, 0},
                                                 {0, 0},
                                                 {2, 3},
                                                 {4, 0, 1}}) {
                SCOPED_TRACE(testing::Message() << "fault " << static_cast<int>(fault) << ", "
                                                << testing::PrintToString(good));
                Group group(good, true);
                group.fault = static_cast<int>(fault);
                PartedRows found{made, options_for(5, 3), exact, {}};
                const auto done = found.make_on(*group.builder);
                std::vector<size_t> all(2 * PartedRows::parts - 1);
                std::iota(all.begin(), all.end(), 0);
                EXPECT_EQ(done, all);
                for (size_t i = 0; i < truth.lists.size(); ++i)
                    expect_same(found.lists[i], truth.lists[i]);
                if (fault == Fault::none) {
                    EXPECT_EQ(group.builder->failure(), "");
                }
                // The group goes on as it is.
                auto lists = made.unset_lists(5);
                group.builder->exact(made.rows, 5, lists.data());
                expect_same(lists, made.exact(5));
            }
    }
}

TEST(GraphTasks, ThrowsWhereNoDeviceIsLeftAndTheCpuMustNot) {
    std::mt19937 random(test_seed());
    const Made made(surface_rows(random, 1000, 12), 12, Metric::l2);
    Group group({1, 2}, false);
    group.fault = static_cast<int>(Fault::failed);
    PartedRows rows{made, options_for(5, 3), false, {}};
    EXPECT_THROW(rows.make_on(*group.builder), DeviceFailure);
    EXPECT_EQ(group.left.size(), 2u);
}

// What is no failure of a device ends the work, also where tasks still wait.
TEST(GraphTasks, PassesOtherExceptionsOn) {
    std::mt19937 random(test_seed());
    const Made made(surface_rows(random, 1000, 12), 12, Metric::l2);
    Group group({-1, 1}, true);
    group.fault = static_cast<int>(Fault::unknown);
    PartedRows rows{made, options_for(5, 3), false, {}};
    EXPECT_THROW(rows.make_on(*group.builder), int);
}

// Two builders that an interrupt ends, and tasks for them. What a task calls has no state of its
// own.
class InterruptedGraphTasks : public testing::Test {
  protected:
    static inline volatile std::sig_atomic_t interrupt;
    static inline std::atomic<int> begun, finished;

    InterruptedGraphTasks() {
        interrupt = 0;
        begun = finished = 0;
    }
    static std::vector<std::unique_ptr<GraphBuilder>> make_members() {
        std::vector<std::unique_ptr<GraphBuilder>> members;
        for (int i = 0; i < 2; ++i)
            members.push_back(make_cpu_graph_builder(1, Interrupts(&interrupt)));
        return members;
    }
    GraphTask slow_task(size_t part) {
        GraphTask task = rows.task(part, part, &lists[part]);
        task.prepare = [](void*) {
            ++begun;
            std::this_thread::sleep_for(std::chrono::milliseconds(200));
        };
        task.keep = [](void*) { ++finished; };
        return task;
    }

    std::mt19937 random{test_seed()};
    const Made made{surface_rows(random, 1000, 12), 12, Metric::l2};
    PartedRows rows{made, options_for(5, 3), false, {}};
    std::vector<Edge> lists[2];
    GraphBuilderGroup group{make_members(), {}, [](size_t) {}};
};

// The caller clears what interrupts them once it knows of it: none of them may miss it.
TEST_F(InterruptedGraphTasks, EndAll) {
    GraphTask interrupted = slow_task(1);
    interrupted.prepare = [](void*) { interrupt = 1; };
    {
        GraphTasks tasks(group);
        tasks.start(0, slow_task(0));
        while (begun == 0) std::this_thread::yield();
        tasks.start(1, interrupted);
        EXPECT_THROW(tasks.finish(), Interrupted);
        interrupt = 0;
    }
    EXPECT_EQ(finished, 0);
}

// An error of the caller's own: it does not wait for what no one will take.
TEST_F(InterruptedGraphTasks, EndWithTheirOwner) {
    {
        GraphTasks tasks(group, &interrupt);
        for (size_t i = 0; i < 2; ++i) tasks.start(i, slow_task(i));
        while (begun < 2) std::this_thread::yield();
    }
    EXPECT_EQ(finished, 0);
    EXPECT_EQ(interrupt, 0) << "as it was";
    // A handler that raises the flag meanwhile is heard.
    begun = 0;
    {
        GraphTasks tasks(group, &interrupt);
        GraphTask raising = slow_task(0);
        raising.prepare = [](void*) {
            ++begun;
            while (interrupt == 0) std::this_thread::yield();
            interrupt = 1;
        };
        tasks.start(0, raising);
        while (begun < 1) std::this_thread::yield();
    }
    EXPECT_EQ(finished, 0);
    EXPECT_EQ(interrupt, 1) << "as the handler left it";
    interrupt = 0;
    // Where nothing runs, nothing is interrupted.
    {
        GraphTasks tasks(group, &interrupt);
        GraphTask task = rows.task(0, 0, &lists[0]);
        task.keep = [](void*) { ++finished; };
        tasks.start(0, task);
        EXPECT_EQ(tasks.finish(), 0u);
    }
    EXPECT_EQ(finished, 1);
}

TEST(GraphTasks, EndsWithTasksUnfinished) {
    std::mt19937 random(test_seed());
    const Made made(surface_rows(random, 1000, 12), 12, Metric::l2);
    Group group({-1, -1}, true);
    PartedRows rows{made, options_for(5, 3), false, {}};
    std::vector<std::vector<Edge>> lists(PartedRows::parts);
    GraphTasks tasks(*group.builder);
    for (size_t i = 0; i < lists.size(); ++i) tasks.start(i, rows.task(i, i, &lists[i]));
}

std::vector<Edge> parted(GraphBuilderGroup& group, const Made& made, const DescentOptions& options,
                         size_t parts, size_t lanes) {
    std::vector<Edge> own(made.rows.count * options.degree, Edge{infinity, no_row});
    std::vector<Edge> found(made.rows.count * options.neighbors, Edge{infinity, no_row});
    size_t last = 0, all = 0;
    make_parted_graph(group, {made.rows, options, parts, lanes, own.data(), found.data()},
                      [&](size_t done, size_t total) {
                          EXPECT_EQ(done, last + 1);
                          last = done, all = total;
                      });
    EXPECT_EQ(last, all);
    EXPECT_EQ(all, parts * (parts + 1) / 2);
    return found;
}

// Small parts are compared all with all: nothing is missed.
TEST(PartedGraph, HasAllNeighborsOfSmallParts) {
    std::mt19937 random(test_seed());
    const Made made(surface_rows(random, 900, 8), 8, Metric::l2);
    const auto options = options_for(5, 3);
    const auto truth = made.exact(5);
    for (const size_t parts : {1, 2, 3, 7})
        for (const size_t devices : {1, 2, 3}) {
            Group group(std::vector<int>(devices, -1), true);
            for (const size_t lanes : {1, 2, 5})
                expect_same(parted(*group.builder, made, options, parts, lanes), truth);
        }
}

TEST(PartedGraph, IsTheSameWhicheverDevicesFail) {
    std::mt19937 random(test_seed());
    const Made made(surface_rows(random, 3 * (most_exact_part + 10), 6), 6, Metric::l2);
    const auto options = options_for(5, 3);
    Group sound({-1}, true);
    const auto truth = parted(*sound.builder, made, options, 3, 1);
    // Neighbors that are as near as the true ones.
    const auto exact = made.exact(5);
    size_t near = 0;
    for (size_t i = 0; i < truth.size(); ++i)
        near += truth[i].distance <= exact[i / 5 * 5 + 4].distance;
    EXPECT_GT(static_cast<double>(near), 0.98 * static_cast<double>(truth.size()));
    for (const std::vector<int>& good : {std::vector<int>{-1, -1}, {-1, 1, 0}, {0, 1}}) {
        SCOPED_TRACE(testing::PrintToString(good));
        Group group(good, true);
        group.fault = static_cast<int>(Fault::late);
        expect_same(parted(*group.builder, made, options, 3, good.size()), truth);
    }
    Group none({0, 1}, false);
    none.fault = static_cast<int>(Fault::failed);
    EXPECT_THROW(parted(*none.builder, made, options, 3, 2), DeviceFailure);
}

}  // namespace
}  // namespace pgwarp
