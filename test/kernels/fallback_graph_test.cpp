// A graph builder on a device that fails: the CPU makes the same graph, from lists as they were.

#include "kernels/fallback_graph_builder.h"
#include "kernels/failing_device.h"
#include "kernels/stand_in_device.h"
#include "kernels/workers.h"

#include <gtest/gtest.h>
#include "test/kernels/graph_check.h"
#include "test/kernels/seed.h"

#include <random>

namespace pgwarp {
namespace {

constexpr Fault faults[] = {Fault::failed, Fault::lost, Fault::out_of_memory, Fault::no_host_memory,
                            Fault::late};

class FallbackGraph : public testing::Test {
  protected:
    std::mt19937 random{test_seed()};
    volatile int fault = static_cast<int>(Fault::none);

    std::unique_ptr<FallbackGraphBuilder> make(int good_calls, size_t budget = size_t{1} << 30) {
        device = make_failing_device(make_stand_in_device(1, budget), &fault, good_calls);
        return std::make_unique<FallbackGraphBuilder>(device->make_graph_builder(),
                                                      [] { return make_cpu_graph_builder(1, {}); });
    }
    std::unique_ptr<Device> device;
};

TEST_F(FallbackGraph, MakesTheSameGraphs) {
    const Made made(surface_rows(random, 900, 12), 12, Metric::l2);
    const auto options = options_for(5, 3);
    const auto all = [&](GraphBuilder& builder) {
        return make_all_graphs(builder, made.rows, 400, options);
    };
    const auto truth = all(*make_cpu_graph_builder(1, {}));
    for (Fault kind : faults)
        for (int good_calls = 0; good_calls <= 7; ++good_calls) {
            SCOPED_TRACE(testing::Message()
                         << "fault " << static_cast<int>(kind) << " after " << good_calls);
            fault = static_cast<int>(Fault::none);
            auto builder = make(good_calls);
            fault = static_cast<int>(kind);
            EXPECT_STREQ(builder->name(), "host");
            const auto made_graphs = all(*builder);
            for (size_t i = 0; i < truth.size(); ++i) expect_same(made_graphs[i], truth[i]);
            EXPECT_EQ(builder->failure().empty(), good_calls == 7);
            EXPECT_STREQ(builder->name(), good_calls == 7 ? "host" : "cpu");
        }
}

TEST_F(FallbackGraph, HasAsMuchRoomAsTheDevice) {
    const auto options = options_for(5, 3);
    auto builder = make(0, size_t{1} << 20);
    const size_t most = builder->most_rows(12, options);
    EXPECT_GT(most, 1000u);
    EXPECT_LT(most, 10000u);
    const Made made(surface_rows(random, most + 1, 12), 12, Metric::l2);
    auto lists = made.unset_lists(options.degree);
    builder->descend({made.rows.rows, most, 12, Metric::l2}, options, lists.data());
    EXPECT_EQ(builder->failure(), "");
    builder->descend(made.rows, options, lists.data());
    EXPECT_NE(builder->failure(), "");
    expect_sound(made, lists, options.degree, options.neighbors);
    EXPECT_EQ(builder->most_rows(12, options), most_graph_rows) << "the CPU's";
}

TEST_F(FallbackGraph, ReportsAndEndsAsTold) {
    const Made made(surface_rows(random, 3000, 12), 12, Metric::l2);
    const auto options = options_for(5, 3);
    for (Fault kind : {Fault::none, Fault::failed}) {
        auto builder = make(0);
        fault = static_cast<int>(kind);
        auto lists = made.unset_lists(options.degree);
        int reports = 0;
        builder->progress = [&](GraphPhase, uint64_t, uint64_t) { ++reports; };
        builder->descend(made.rows, options, lists.data());
        EXPECT_GT(reports, 0);
    }
    // An interrupt is no failure.
    static volatile std::sig_atomic_t raised = 1;
    auto device_told = make_stand_in_device(1, size_t{1} << 30, &raised);
    FallbackGraphBuilder builder(device_told->make_graph_builder(), [] {
        ADD_FAILURE();
        return make_cpu_graph_builder(1, {});
    });
    auto lists = made.unset_lists(options.degree);
    EXPECT_THROW(builder.descend(made.rows, options, lists.data()), Interrupted);
}

}  // namespace
}  // namespace pgwarp
