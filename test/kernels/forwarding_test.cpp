// Executors and graph builders that forward: results are those of the wrapped one, and every
// operation passes run() once.

#include "kernels/device.h"
#include "kernels/forwarding_executor.h"
#include "kernels/forwarding_graph_builder.h"
#include "kernels/similar_pairs.h"
#include "kernels/row_pass.h"
#include "test/kernels/graph_check.h"
#include "test/kernels/seed.h"

#include <gtest/gtest.h>
#include <limits>
#include <random>
#include <vector>

namespace pgwarp {
namespace {

constexpr uint32_t dims = 8, lists = 5, m = 4;
constexpr size_t count = 600;

class CountingExecutor final : public ForwardingExecutor {
  public:
    CountingExecutor() : ForwardingExecutor(make_cpu_executor(1, {})) {}
    int runs = 0;

  protected:
    void run(const Work& work) override {
        ++runs;
        work(*executor_);
    }
};

// Calls every operation once, and returns all that they computed.
std::vector<double> use_all(Executor& executor, std::vector<float> rows) {
    std::vector<double> results;
    const auto add = [&](const auto& values) {
        results.insert(results.end(), values.begin(), values.end());
    };
    const QuantizerShape shape{dims, lists, m, Metric::l2};
    std::vector<float> centroids(lists * dims), codebook(dims * codewords), matrix(dims * dims);
    const std::vector<float> given = rows;
    const auto data = executor.take(rows.data(), count, dims);
    executor.kmeans_start(*data, lists, 1, centroids.data());
    add(std::vector{executor.kmeans_step(*data, lists, centroids.data())});
    std::vector<uint32_t> nearest(count);
    executor.assign(*data, lists, centroids.data(), nearest.data());
    add(nearest);
    const KmeansSums sums = executor.kmeans_sums(*data, lists, centroids.data());
    add(sums.sums);
    add(sums.sizes);
    add(std::vector{sums.error});
    const std::vector<uint32_t> numbers = {599, 0, 17};
    std::vector<float> gathered(numbers.size() * dims);
    executor.gather(*data, numbers, gathered.data());
    add(gathered);
    executor.principal_directions({*data, count}, dims, matrix.data());
    add(matrix);
    executor.rotate_rows(*data, {dims, dims, matrix.data()});
    executor.keep_first(*data, count - 9);
    add(std::vector{executor.variance({*data, count - 9})});
    executor.make_residuals(*data, lists, centroids.data());
    executor.codebook_start(*data, shape, 2, codebook.data());
    add(std::vector{executor.codebook_step(*data, shape, codebook.data())});
    add(codebook);
    std::vector<uint8_t> codes(count * m);
    executor.encode_residuals({*data, 100}, {shape, nullptr, codebook.data()}, codes.data());
    add(codes);
    add(std::vector{executor.code_error({*data, 100}, shape, codebook.data(), codes.data())});
    std::vector<float> rotated_codebook = codebook;
    const FirstRows some{*data, 500};
    executor.rotation_start(some, shape, 4, matrix.data(), rotated_codebook.data());
    add(std::vector{executor.rotation_step(some, shape, matrix.data(), rotated_codebook.data())});
    std::vector<float> rotated(count * dims);
    executor.rotate({dims, dims, matrix.data()}, given.data(), count, rotated.data());
    add(rotated);

    QuantizerShape additive = shape;
    additive.search_rounds = 4;
    std::vector<float> words(m * dims * codewords);
    add(std::vector{
        executor.additive_step(*data, {additive, 0, 2, 3, words.data(), codes.data()})});
    add(codes);

    std::vector<float> offsets(count);
    const Quantizer quantizer{shape, centroids.data(), codebook.data()};
    executor.encode(quantizer, {given.data(), count, nearest.data(), codes.data(), offsets.data()});
    add(codes);
    std::vector<uint64_t> ids(count);
    std::vector<Neighbor> found(3, {std::numeric_limits<float>::infinity(), 0});
    executor.exact_search(
        {given.data(), 1, given.data(), count, ids.data(), dims, Metric::l2, 3, found.data()});
    add(std::vector{found[0].distance, found[2].distance});
    RowPassInput input;
    input.quantizer = &quantizer;
    input.dims = dims;
    input.block_rows = count;
    const auto pass = executor.begin_pass(input);
    pass->start(given.data(), ids.data(), count);
    const PassedBlock passed = pass->finish();
    add(std::vector(passed.lists, passed.lists + count));
    return results;
}

TEST(ForwardingExecutor, GivesWhatTheWrappedOneGives) {
    std::mt19937 random(test_seed());
    std::normal_distribution<float> normal;
    std::vector<float> rows(count * dims);
    for (float& x : rows) x = normal(random);
    const auto cpu = make_cpu_executor(1, {});
    CountingExecutor forwarding;
    EXPECT_EQ(use_all(forwarding, rows), use_all(*cpu, rows));
    EXPECT_EQ(forwarding.runs, 22);
    EXPECT_STREQ(forwarding.name(), cpu->name());
    EXPECT_THROW(forwarding.build_dataset(dims, count, RowElements::float32), std::runtime_error);
    EXPECT_EQ(forwarding.runs, 23);
}

class CountingGraphBuilder final : public ForwardingGraphBuilder {
  public:
    CountingGraphBuilder() : ForwardingGraphBuilder(make_cpu_graph_builder(1, {})) {}
    int runs = 0;
    size_t edges = 0;

  protected:
    DescentReport run(const Lists& lists, const Work& work) override {
        ++runs;
        edges = lists.size();
        return forward(work, lists.edges);
    }
};

TEST(ForwardingGraphBuilder, GivesWhatTheWrappedOneGives) {
    std::mt19937 random(test_seed());
    const Made made(surface_rows(random, 500, 10), 10, Metric::l2);
    const auto cpu = make_cpu_graph_builder(1, {});
    CountingGraphBuilder forwarding;
    const auto options = options_for(5, 1);
    auto found = made.unset_lists(options.degree), expected = found;
    uint64_t reports = 0;
    forwarding.progress = [&](GraphPhase, uint64_t, uint64_t) { ++reports; };
    const auto same = [&] {
        ASSERT_EQ(found.size(), expected.size());
        for (size_t i = 0; i < found.size(); ++i) ASSERT_EQ(found[i].row, expected[i].row);
    };
    forwarding.exact(made.rows, options.degree, found.data());
    cpu->exact(made.rows, options.degree, expected.data());
    same();
    EXPECT_GT(reports, 0u);
    forwarding.exact_merge(made.rows, 200, options.degree, found.data());
    cpu->exact_merge(made.rows, 200, options.degree, expected.data());
    same();
    const RowSpan part{120, 300};
    for (const size_t first : {size_t{0}, size_t{200}}) {
        forwarding.exact_part(made.rows, first, part, options.degree, found.data());
        cpu->exact_part(made.rows, first, part, options.degree, expected.data());
        same();
        EXPECT_EQ(forwarding.edges, part.size() * options.degree);
    }
    EXPECT_EQ(forwarding.descend(made.rows, options, found.data()).compared,
              cpu->descend(made.rows, options, expected.data()).compared);
    same();
    EXPECT_EQ(forwarding.merge(made.rows, 200, options, found.data()).compared,
              cpu->merge(made.rows, 200, options, expected.data()).compared);
    same();
    EXPECT_EQ(forwarding.append(made.rows, 200, options, found.data()).compared,
              cpu->append(made.rows, 200, options, expected.data()).compared);
    same();
    EXPECT_EQ(forwarding.runs, 7);
    EXPECT_EQ(forwarding.edges, found.size());
    std::vector<RowPair> pairs, same_pairs;
    const PairRectangle all{{0, 500}, {0, 500}};
    EXPECT_TRUE(forwarding.find_pairs(made.rows, 20.0f)->find(all, 1000000, &pairs));
    EXPECT_TRUE(cpu->find_pairs(made.rows, 20.0f)->find(all, 1000000, &same_pairs));
    EXPECT_GT(pairs.size(), 0u);
    ASSERT_EQ(pairs.size(), same_pairs.size());
    for (size_t i = 0; i < pairs.size(); ++i) EXPECT_EQ(pairs[i].second, same_pairs[i].second);
    EXPECT_EQ(forwarding.runs, 9);
    EXPECT_STREQ(forwarding.name(), cpu->name());
    EXPECT_EQ(forwarding.default_options(7).degree, cpu->default_options(7).degree);
    EXPECT_EQ(forwarding.most_rows(10, options), cpu->most_rows(10, options));
}

TEST(RanOnDevice, TellsFailuresOfTheDeviceFromOthers) {
    std::string failure;
    const auto runs = [&](auto work) {
        return ran_on_device(work, [&](const char* message) { failure = message; });
    };
    EXPECT_TRUE(runs([] {}));
    EXPECT_EQ(failure, "");
    EXPECT_FALSE(runs([] { throw DeviceFailure("broken", false); }));
    EXPECT_EQ(failure, "broken");
    EXPECT_FALSE(runs([] { throw OutOfDeviceMemory(3, 2, 1); }));
    EXPECT_EQ(failure, OutOfDeviceMemory(3, 2, 1).what());
    EXPECT_FALSE(runs([] { throw OutOfHostMemory(3); }));
    EXPECT_EQ(failure, OutOfHostMemory(3).what());
    EXPECT_THROW(runs([] { throw Interrupted(); }), Interrupted);
    EXPECT_THROW(runs([] { throw std::bad_alloc(); }), std::bad_alloc);
}

}  // namespace
}  // namespace pgwarp
