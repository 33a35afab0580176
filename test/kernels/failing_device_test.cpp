// Faults on demand: what a failing device throws, and when.
#include "kernels/failing_device.h"

#include "kernels/stand_in_device.h"

#include <gtest/gtest.h>

#include <limits>
#include <vector>

namespace pgwarp {
namespace {

constexpr uint32_t dims = 2;

struct FailingDevice : testing::Test {
    volatile int fault = static_cast<int>(Fault::none);
    std::vector<float> rows = {1, 2, 3, 4, 5, 6};
    std::vector<float> centroids = {0, 0};

    std::unique_ptr<Device> make(int good_calls = 0) {
        return make_failing_device(make_stand_in_device(1, size_t{1} << 20), &fault, good_calls);
    }
    void set(Fault now) { fault = static_cast<int>(now); }
    void assign(Executor& executor, Dataset& data) {
        uint32_t nearest[3];
        executor.assign(data, 1, centroids.data(), nearest);
    }
};

TEST_F(FailingDevice, ThrowsByFault) {
    const auto device = make();
    const auto executor = device->make_executor();
    EXPECT_STREQ(executor->name(), "host");
    const auto data = executor->take(rows.data(), 3, dims);
    const auto lost_by = [&](Fault now) {
        set(now);
        try {
            assign(*executor, *data);
        } catch (const DeviceFailure& failure) {
            return failure.lost;
        }
        ADD_FAILURE() << "no failure";
        return false;
    };
    EXPECT_FALSE(lost_by(Fault::failed));
    EXPECT_TRUE(lost_by(Fault::lost));
    set(Fault::out_of_memory);
    EXPECT_THROW(assign(*executor, *data), OutOfDeviceMemory);
    set(Fault::no_host_memory);
    EXPECT_THROW(assign(*executor, *data), std::bad_alloc);
    set(Fault::unknown);
    EXPECT_THROW(assign(*executor, *data), int);
    set(Fault::none);
    EXPECT_NO_THROW(assign(*executor, *data));
}

TEST_F(FailingDevice, FailsLateAfterItHasAnswered) {
    const auto device = make();
    const auto executor = device->make_executor();
    const std::vector<uint64_t> ids = {10, 11, 12};
    Neighbor nearest[1] = {{std::numeric_limits<float>::infinity(), 0}};
    set(Fault::late);
    EXPECT_THROW(executor->exact_search({centroids.data(), 1, rows.data(), 3, ids.data(), dims,
                                         Metric::l2, 1, nearest}),
                 DeviceFailure);
    EXPECT_EQ(nearest[0].id, 10u);
}

TEST_F(FailingDevice, CountsGoodCalls) {
    set(Fault::failed);
    const auto device = make(2);
    const auto executor = device->make_executor();
    const auto data = executor->take(rows.data(), 3, dims);
    EXPECT_NO_THROW(assign(*executor, *data));
    EXPECT_THROW(assign(*executor, *data), DeviceFailure);
    // Each executor counts its own.
    EXPECT_NO_THROW(device->make_executor()->take(rows.data(), 3, dims));
}

TEST_F(FailingDevice, MakesNothingOnceLost) {
    set(Fault::lost);
    const auto lost = make();
    EXPECT_THROW(lost->make_executor(), DeviceFailure);
    EXPECT_THROW(lost->make_graph_builder(), DeviceFailure);
    const auto later = make(1);
    EXPECT_NO_THROW(later->make_executor());
    EXPECT_NO_THROW(later->make_graph_builder());
}

}  // namespace
}  // namespace pgwarp
