// A device that fails at any call leaves results as if the CPU had done all of it.

#include "kernels/fallback_executor.h"

#include "kernels/failing_device.h"
#include "kernels/stand_in_device.h"
#include "test/kernels/seed.h"

#include <gtest/gtest.h>
#include <limits>
#include <random>
#include <vector>

namespace pgwarp {
namespace {

constexpr uint32_t dims = 12, lists = 7, m = 4, queries = 5, k = 3;
constexpr size_t count = 1500;
const QuantizerShape shape{dims, lists, m, Metric::l2};

struct Results {
    std::vector<float> centroids = std::vector<float>(lists * dims);
    std::vector<float> codebook = std::vector<float>(dims * codewords);
    std::vector<uint32_t> nearest_list = std::vector<uint32_t>(count);
    std::vector<uint32_t> list_of = std::vector<uint32_t>(count);
    std::vector<uint8_t> codes = std::vector<uint8_t>(count * m);
    std::vector<float> offsets = std::vector<float>(count);
    std::vector<Neighbor> nearest =
        std::vector<Neighbor>(queries * k, {std::numeric_limits<float>::infinity(), 0});
};

// All that a build does. `before` is called before each call.
template <typename Before>
Results build(Executor& executor, const std::vector<float>& given, Before&& before) {
    Results r;
    std::vector<float> rows = given;
    before();
    const auto data = executor.take(rows.data(), count, dims);
    before();
    executor.kmeans_start(*data, lists, 1, r.centroids.data());
    for (int i = 0; i < 3; ++i) {
        before();
        executor.kmeans_step(*data, lists, r.centroids.data());
    }
    before();
    executor.assign(*data, lists, r.centroids.data(), r.nearest_list.data());
    before();
    const auto residuals = executor.take(rows.data(), count, dims);
    before();
    executor.make_residuals(*residuals, lists, r.centroids.data());
    before();
    executor.codebook_start(*residuals, shape, 2, r.codebook.data());
    for (int i = 0; i < 3; ++i) {
        before();
        executor.codebook_step(*residuals, shape, r.codebook.data());
    }
    rows = given;
    before();
    executor.encode({shape, r.centroids.data(), r.codebook.data()},
                    {rows.data(), count, r.list_of.data(), r.codes.data(), r.offsets.data()});
    std::vector<uint64_t> ids(count);
    for (size_t i = 0; i < count; ++i) ids[i] = i + 1;
    for (const size_t first : {size_t{0}, count / 2}) {
        before();
        executor.exact_search({given.data(), queries, rows.data() + first * dims, count / 2,
                               ids.data() + first, dims, Metric::l2, k, r.nearest.data()});
    }
    return r;
}

void expect_same(const Results& a, const Results& b) {
    EXPECT_EQ(a.centroids, b.centroids);
    EXPECT_EQ(a.codebook, b.codebook);
    EXPECT_EQ(a.nearest_list, b.nearest_list);
    EXPECT_EQ(a.list_of, b.list_of);
    EXPECT_EQ(a.codes, b.codes);
    EXPECT_EQ(a.offsets, b.offsets);
    for (size_t i = 0; i < a.nearest.size(); ++i) {
        EXPECT_EQ(a.nearest[i].id, b.nearest[i].id);
        EXPECT_EQ(a.nearest[i].distance, b.nearest[i].distance);
    }
}

std::unique_ptr<Executor> cpu() {
    return make_cpu_executor(1, {});
}

std::vector<float> random_rows() {
    std::mt19937 random(test_seed());
    std::normal_distribution<float> normal;
    std::vector<float> rows(count * dims);
    for (float& x : rows) x = normal(random);
    return rows;
}

TEST(FallbackExecutor, GoesOnWhereTheDeviceFailed) {
    const std::vector<float> rows = random_rows();
    int calls = 0;
    const Results expected = build(*cpu(), rows, [&] { ++calls; });
    for (const Fault kind :
         {Fault::failed, Fault::lost, Fault::out_of_memory, Fault::no_host_memory, Fault::late})
        for (int failing_call = 0; failing_call <= calls; ++failing_call) {
            SCOPED_TRACE(failing_call);
            volatile int fault = static_cast<int>(Fault::none);
            const auto device =
                make_failing_device(make_stand_in_device(1, size_t{1} << 30), &fault);
            FallbackExecutor executor(device->make_executor(), cpu, cpu);
            int call = 0;
            const Results results = build(executor, rows, [&] {
                if (call++ == failing_call) fault = static_cast<int>(kind);
            });
            expect_same(results, expected);
            EXPECT_EQ(executor.failure().empty(), failing_call == calls);
            EXPECT_STREQ(executor.name(), failing_call == calls ? "host" : "cpu");
        }
}

// Three devices that fall back to each other: each fails at another call, or never (-1).
TEST(FallbackExecutor, OtherDevicesGoOn) {
    const std::vector<float> rows = random_rows();
    int calls = 0;
    const Results expected = build(*cpu(), rows, [&] { ++calls; });
    const auto run = [&](Fault kind, const std::vector<int>& failing_calls, size_t first) {
        std::vector<int> faults(failing_calls.size(), static_cast<int>(Fault::none));
        std::vector<std::unique_ptr<Device>> devices;
        std::vector<std::unique_ptr<Executor>> executors;
        for (int& fault : faults) {
            devices.push_back(
                make_failing_device(make_stand_in_device(1, size_t{1} << 30), &fault));
            executors.push_back(devices.back()->make_executor());
        }
        const auto fallbacks = fall_back_to_each_other(executors);
        int call = 0;
        expect_same(build(*executors[first], rows,
                          [&] {
                              for (size_t i = 0; i < faults.size(); ++i)
                                  if (call == failing_calls[i]) faults[i] = static_cast<int>(kind);
                              ++call;
                          }),
                    expected);
        EXPECT_STREQ(executors[first]->name(), "host");
        EXPECT_EQ(fallbacks[first]->failed(), failing_calls[first] >= 0);
    };
    for (const Fault kind : {Fault::failed, Fault::out_of_memory, Fault::late})
        for (int failing_call = 0; failing_call < calls; ++failing_call) {
            SCOPED_TRACE(testing::Message()
                         << "fault " << static_cast<int>(kind) << ", call " << failing_call);
            run(kind, {failing_call, -1}, 0);
            run(kind, {-1, failing_call}, 1);
            run(kind, {failing_call, failing_call, -1}, 0);
            run(kind, {failing_call, -1, 0}, 0);
            run(kind, {failing_call / 2, failing_call, -1}, 0);
            EXPECT_THROW(run(kind, {failing_call, 0}, 0), std::runtime_error);
        }
}

TEST(FallbackExecutor, PassesOnWhatIsNotTheDevicesFault) {
    std::vector<float> rows = random_rows();
    volatile std::sig_atomic_t interrupt = 0;
    const auto device = make_stand_in_device(1, size_t{1} << 30, &interrupt);
    FallbackExecutor executor(device->make_executor(), cpu, cpu);
    const auto data = executor.take(rows.data(), count, dims);
    std::vector<float> centroids(lists * dims);
    executor.kmeans_start(*data, lists, 1, centroids.data());
    interrupt = 1;
    EXPECT_THROW(executor.kmeans_step(*data, lists, centroids.data()), Interrupted);
    interrupt = 0;
    executor.kmeans_step(*data, lists, centroids.data());
    EXPECT_TRUE(executor.failure().empty());
}

}  // namespace
}  // namespace pgwarp
