// Several devices, here two of one GPU, as one executor and as one graph builder.

#include "kernels/cuda/executor.h"
#include "kernels/executor_group.h"
#include "kernels/graph_builder_group.h"

#include "test/kernels/cuda_graph_check.h"
#include "test/kernels/row_pass_check.h"

namespace pgwarp::gpu {
namespace {

class CudaGroup : public CudaGraph {
  protected:
    std::vector<std::unique_ptr<Context>> contexts;

    std::unique_ptr<Executor> executors(size_t count) {
        std::vector<std::unique_ptr<Executor>> members;
        for (size_t i = 0; i < count; ++i) {
            contexts.push_back(std::make_unique<Context>(options()));
            members.push_back(make_executor(*contexts.back()));
        }
        return make_executor_group(std::move(members));
    }
};

TEST_F(CudaGroup, PassesGiveWhatOneDeviceGives) {
    const auto group = executors(2);
    for (PassCase c : pass_cases()) {
        c.report_nearest = false;
        PassData data(c, random);
        // Memory that one device has pinned is pinned for all.
        group->register_memory(data.rows.data(), data.rows.size() * sizeof(float));
        expect_same_pass(c, data, run_pass(*group, c, data), expected_pass(c, data));
        group->unregister_memory(data.rows.data());
    }
}

// Also against kmeans_step() of one device, which adds up on the device.
TEST_F(CudaGroup, ClustersAsOneDeviceDoes) {
    const size_t count = small_tests() ? 3000 : 60000;
    const uint32_t dims = 33, clusters = 90;
    std::vector<float> rows = normal_floats(random, count * dims);
    const Context context(options());
    const auto one = make_executor(context);
    const auto two = executors(2);
    std::vector<std::vector<float>> centroids;
    std::vector<std::vector<uint32_t>> nearest;
    std::vector<double> errors;
    for (Executor* executor : {one.get(), two.get()}) {
        const auto builder = executor->build_dataset(dims, count, RowElements::float32);
        constexpr size_t block = 1000;
        for (size_t first = 0; first < count; first += block)
            builder->add(first, rows.data() + first * dims, std::min(block, count - first));
        const auto data = builder->finish();
        std::vector<float> means(clusters * dims);
        std::vector<uint32_t> of_rows(count);
        executor->kmeans_start(*data, clusters, 3, means.data());
        double error = 0;
        for (int i = 0; i < 5; ++i) error = executor->kmeans_step(*data, clusters, means.data());
        executor->assign(*data, clusters, means.data(), of_rows.data());
        centroids.push_back(means);
        nearest.push_back(of_rows);
        errors.push_back(error);
    }
    EXPECT_NEAR(errors[0], errors[1], 1e-6 * errors[0]);
    size_t other = 0;
    for (size_t i = 0; i < count; ++i) other += nearest[0][i] != nearest[1][i];
    EXPECT_LE(other, count / 1000) << "ties that rounding decides";
    double off = 0;
    for (size_t i = 0; i < centroids[0].size(); ++i)
        off = std::max(off, std::fabs(double{centroids[0][i]} - centroids[1][i]));
    EXPECT_LT(off, 0.05);
}

// A cluster of equal rows, so that others stay empty.
TEST_F(CudaGroup, FillsEmptyClusters) {
    const size_t count = 2000;
    const uint32_t dims = 5, clusters = 20;
    std::vector<float> rows(count * dims, 2.0f);
    for (size_t i = 0; i < 40 * dims; ++i) rows[i] = static_cast<float>(i % 7);
    const auto group = executors(2);
    const auto builder = group->build_dataset(dims, count, RowElements::float32);
    builder->add(1, rows.data() + 900 * dims, count - 900);
    builder->add(0, rows.data(), 900);
    const auto data = builder->finish();
    const auto cpu = make_cpu_executor(1, {});
    const auto taken = cpu->take(rows.data(), count, dims);
    std::vector<float> found(clusters * dims), expected(clusters * dims);
    group->kmeans_start(*data, clusters, 3, found.data());
    cpu->kmeans_start(*taken, clusters, 3, expected.data());
    EXPECT_EQ(found, expected);
    group->kmeans_step(*data, clusters, found.data());
    cpu->kmeans_step(*taken, clusters, expected.data());
    for (size_t i = 0; i < found.size(); ++i) EXPECT_NEAR(found[i], expected[i], 1e-5) << i;
}

TEST_F(CudaGroup, ExactGraphsAreThoseOfOneDevice) {
    OnDevice one(options());
    for (const size_t count : {1, 700, 5000})
        for (const Metric metric : all_metrics) {
            const uint32_t dims = 24, degree = 10;
            const Made made(pgwarp::normal_floats(random, count * dims), dims, metric);
            SCOPED_TRACE(testing::Message()
                         << count << " rows, metric " << static_cast<int>(metric));
            OnDevice first(options()), second(options());
            std::vector<std::unique_ptr<GraphBuilder>> members;
            members.push_back(std::move(first.builder));
            members.push_back(std::move(second.builder));
            GraphBuilderGroup group(std::move(members), {});
            const auto truth = exact(one, made, degree);
            std::vector<Edge> lists(count * degree, Edge{-5, 0});
            group.exact(made.rows, degree, lists.data());
            expect_exact(made, lists, degree);
            for (size_t i = 0; i < lists.size(); ++i)
                ASSERT_EQ(lists[i].distance, truth[i].distance) << i;
            // Two sets, merged.
            const size_t border = count / 3;
            auto merged = made.unset_lists(degree), expected = made.unset_lists(degree);
            group.exact_merge(made.rows, border, degree, merged.data());
            one->exact_merge(made.rows, border, degree, expected.data());
            for (size_t i = 0; i < merged.size(); ++i)
                ASSERT_EQ(merged[i].distance, expected[i].distance) << i;
        }
}

}  // namespace
}  // namespace pgwarp::gpu
