// The trainer's models, and that neither interrupts nor a failing device change them.

#include "kernels/trainer.h"

#include "kernels/bfloat16.h"
#include "kernels/failing_device.h"
#include "kernels/fallback_executor.h"
#include "kernels/stand_in_device.h"
#include "test/kernels/seed.h"

#include <atomic>
#include <chrono>
#include <cmath>
#include <gtest/gtest.h>
#include <random>
#include <string>
#include <thread>
#include <vector>

namespace pgwarp {
namespace {

struct Case {
    const char* name;
    uint32_t dims;
    QuantizerShape shape;
    bool rotate = false;
    uint32_t parents = 0;
};

void PrintTo(const Case& c, std::ostream* out) {
    *out << c.name;
}

const Case cases[] = {
    {"pq", 12, {12, 7, 4, Metric::l2}},
    {"pq_inner_product", 12, {12, 7, 5, Metric::inner_product}},
    {"pq_cosine_4_bits", 12, {12, 7, 3, Metric::cosine, 4}},
    {"pq_reduced", 16, {12, 7, 4, Metric::l2}},
    {"opq", 12, {12, 7, 4, Metric::l2}, true},
    {"opq_4_bits", 12, {12, 7, 3, Metric::inner_product, 4}, true},
    {"opq_reduced", 20, {12, 7, 4, Metric::l2}, true},
    {"lsq", 12, {12, 7, 2, Metric::l2, 8, 4}},
    {"pq_parents", 12, {12, 40, 4, Metric::l2}, false, 4},
    {"pq_reduced_parents", 16, {12, 40, 4, Metric::l2}, false, 4},
    {"opq_reduced_parents", 20, {12, 40, 4, Metric::l2}, true, 3},
};

constexpr size_t count = 3000;

// Rows with correlated dimensions, in clusters.
std::vector<float> rows_of(const Case& c, unsigned seed, float offset = 0) {
    std::mt19937 random(seed);
    std::normal_distribution<float> normal;
    std::vector<float> mix(size_t{c.dims} * c.dims), rows(count * c.dims);
    for (float& x : mix) x = normal(random);
    for (size_t i = 0; i < count; ++i) {
        const float centre = static_cast<float>(random() % 5);
        for (uint32_t k = 0; k < c.dims; ++k) {
            const float x = (centre + normal(random)) * std::pow(0.8f, static_cast<float>(k));
            for (uint32_t d = 0; d < c.dims; ++d) rows[i * c.dims + d] += x * mix[k * c.dims + d];
        }
        for (uint32_t d = 0; d < c.dims; ++d) rows[i * c.dims + d] += offset;
        if (c.shape.metric != Metric::cosine) continue;
        float norm = 0;
        for (uint32_t d = 0; d < c.dims; ++d) norm += rows[i * c.dims + d] * rows[i * c.dims + d];
        for (uint32_t d = 0; d < c.dims; ++d) rows[i * c.dims + d] /= std::sqrt(norm);
    }
    return rows;
}

TrainingInput input_of(const Case& c, std::vector<float>& rows) {
    TrainingInput input = {};
    input.rows = rows.data();
    input.count = rows.size() / c.dims;
    input.dims = c.dims;
    input.shape = c.shape;
    input.rotate = c.rotate;
    input.seed = 42;
    input.parents = c.parents;
    input.variance_rows = 2500;
    input.direction_rows = 2000;
    input.residual_rows = 2600;
    input.rotation_rows = 1500;
    input.error_rows = 1000;
    return input;
}

TrainedModel train(Executor& executor, const Case& c, std::vector<float> rows,
                   TrainingProgress progress = {}) {
    Trainer trainer(executor, input_of(c, rows), std::move(progress));
    while (trainer.advance()) {
    }
    return trainer.model();
}

void expect_same(const TrainedModel& a, const TrainedModel& b) {
    EXPECT_EQ(a.centroids, b.centroids);
    EXPECT_EQ(a.parent_centroids, b.parent_centroids);
    EXPECT_EQ(a.parent_first, b.parent_first);
    EXPECT_EQ(a.codebook, b.codebook);
    EXPECT_EQ(a.matrix, b.matrix);
    EXPECT_EQ(a.wide, b.wide);
    EXPECT_EQ(a.quantization_error, b.quantization_error);
    EXPECT_EQ(a.training_rows, b.training_rows);
}

std::unique_ptr<Executor> cpu() {
    return make_cpu_executor(1, {});
}

// The error of the model's codes for all rows, in float64, relative to the rows' variance.
double measured_error(const Case& c, const TrainedModel& model, const std::vector<float>& rows) {
    const uint32_t to = c.shape.dims, m = c.shape.m;
    const auto executor = cpu();
    std::vector<float> rotated = rows;
    if (!model.matrix.empty()) {
        rotated.resize(count * to);
        executor->rotate({c.dims, to, model.matrix.data()}, rows.data(), count, rotated.data());
    }
    std::vector<uint32_t> lists(count);
    std::vector<uint8_t> codes(count * m);
    std::vector<float> offsets(count);
    executor->encode({c.shape, model.centroids.data(), model.codebook.data()},
                     {rotated.data(), count, lists.data(), codes.data(), offsets.data()});
    std::vector<double> mean(c.dims);
    for (size_t i = 0; i < rows.size(); ++i) mean[i % c.dims] += rows[i] / double{count};
    double error = 0, variance = 0, kept = 0;
    std::vector<double> rotated_mean(to);
    for (size_t i = 0; i < rotated.size(); ++i) rotated_mean[i % to] += rotated[i] / double{count};
    for (size_t i = 0; i < rows.size(); ++i) variance += std::pow(rows[i] - mean[i % c.dims], 2);
    for (size_t i = 0; i < rotated.size(); ++i)
        kept += std::pow(rotated[i] - rotated_mean[i % to], 2);
    for (size_t i = 0; i < count; ++i) {
        std::vector<double> decoded(to);
        for (uint32_t j = 0; j < m; ++j)
            for (uint32_t row = c.shape.piece_begin(j); row < c.shape.piece_begin(j + 1); ++row)
                decoded[c.shape.dim_of_row(row)] +=
                    model.codebook[size_t{row} * codewords + codes[i * m + j]];
        for (uint32_t d = 0; d < to; ++d)
            error += std::pow(
                rotated[i * to + d] - model.centroids[size_t{lists[i]} * to + d] - decoded[d], 2);
    }
    // A matrix that keeps all dimensions drops none: what is missing is its rounding to sixteen
    // bits.
    const double dropped = to < c.dims ? std::max(0.0, variance - kept) : 0;
    return (error + dropped) / variance;
}

class TrainerTest : public testing::TestWithParam<Case> {};

TEST_P(TrainerTest, ModelHasTheErrorItReports) {
    const Case& c = GetParam();
    const std::vector<float> rows = rows_of(c, test_seed());
    const TrainedModel model = train(*cpu(), c, rows);
    EXPECT_EQ(model.training_rows, count);
    EXPECT_EQ(model.centroids.size(), size_t{c.shape.lists} * c.shape.dims);
    EXPECT_EQ(model.codebook.size(), size_t{c.shape.codebook_rows()} * codewords);
    const bool reduced = c.dims > c.shape.dims;
    EXPECT_EQ(model.matrix.size(), c.rotate || reduced ? size_t{c.dims} * c.shape.dims : size_t{0});
    EXPECT_EQ(model.wide, reduced);
    for (const auto* values : {&model.centroids, &model.codebook, &model.matrix})
        for (const float x : *values) {
            ASSERT_TRUE(model.wide || x == to_float(to_bfloat16(x)));
        }
    for (uint32_t i = 0; i < c.shape.dims && !model.matrix.empty(); ++i)
        for (uint32_t j = 0; j <= i; ++j) {
            double product = 0;
            for (uint32_t d = 0; d < c.dims; ++d)
                product += double{model.matrix[i * c.dims + d]} * model.matrix[j * c.dims + d];
            ASSERT_NEAR(product, i == j, model.wide ? 1e-4 : 2e-2);
        }
    EXPECT_GT(model.quantization_error, 0);
    EXPECT_LT(model.quantization_error, 0.5);
    // Training rows are fitted a little better than the others, and of the last step only.
    const double measured = measured_error(c, model, rows);
    EXPECT_NEAR(model.quantization_error, measured, 0.25 * measured + 1e-3);
}

TEST_P(TrainerTest, ThreadsDoNotChangeTheModel) {
    const Case& c = GetParam();
    const std::vector<float> rows = rows_of(c, test_seed());
    expect_same(train(*make_cpu_executor(3, {}), c, rows), train(*cpu(), c, rows));
}

TEST_P(TrainerTest, ProgressCountsUpInEachPhase) {
    const Case& c = GetParam();
    std::vector<TrainingPhase> phases;
    uint64_t last = 0, last_total = 0;
    bool complete = true;
    train(*cpu(), c, rows_of(c, test_seed()),
          [&](TrainingPhase phase, uint64_t done, uint64_t total) {
              if (done == 0) {
                  complete = complete && last == last_total;
                  if (phases.empty() || phases.back() != phase) phases.push_back(phase);
              } else {
                  EXPECT_EQ(phase, phases.back());
                  EXPECT_EQ(total, last_total);
                  EXPECT_GT(done, last);
                  EXPECT_LE(done, total);
              }
              last = done;
              last_total = total;
          });
    EXPECT_TRUE(complete);
    EXPECT_GT(last_total, 0u);
    EXPECT_EQ(last, last_total);
    EXPECT_EQ(phases, (std::vector{TrainingPhase::lists, TrainingPhase::codes}));
}

// An interrupt before each step: the step is done when the flag is down again.
TEST_P(TrainerTest, GoesOnAfterInterruptsBetweenSteps) {
    const Case& c = GetParam();
    const std::vector<float> rows = rows_of(c, test_seed());
    volatile std::sig_atomic_t flag = 0;
    const auto executor = make_cpu_executor(2, &flag);
    std::vector<float> mine = rows;
    Trainer trainer(*executor, input_of(c, mine));
    int interrupted = 0;
    for (bool more = true; more;) {
        flag = 1;
        try {
            more = trainer.advance();
        } catch (const Interrupted&) {
            ++interrupted;
            flag = 0;
            more = trainer.advance();
        }
    }
    EXPECT_GT(interrupted, 10);
    expect_same(trainer.model(), train(*cpu(), c, rows));
}

// Interrupts at any time. (A step of additive codes that is cut short leaves better codes behind.)
TEST_P(TrainerTest, GoesOnAfterInterruptsInsideSteps) {
    const Case& c = GetParam();
    if (c.shape.additive()) GTEST_SKIP();
    const std::vector<float> rows = rows_of(c, test_seed());
    const TrainedModel expected = train(*cpu(), c, rows);
    std::mt19937 random(test_seed());
    for (int round = 0; round < 5; ++round) {
        volatile std::sig_atomic_t flag = 0;
        std::atomic<bool> over = false;
        std::thread raising([&, wait = std::chrono::microseconds(100 + random() % 3000)] {
            while (!over) {
                std::this_thread::sleep_for(wait);
                flag = 1;
            }
        });
        const auto executor = make_cpu_executor(2, &flag);
        std::vector<float> mine = rows;
        Trainer trainer(*executor, input_of(c, mine));
        // After some interrupts all else runs to its end.
        int interrupts = 0;
        for (bool more = true; more;) {
            if (interrupts >= 50) {
                over = true;
                if (raising.joinable()) raising.join();
                flag = 0;
            }
            try {
                more = trainer.advance();
            } catch (const Interrupted&) {
                ++interrupts;
                flag = 0;
            }
        }
        over = true;
        if (raising.joinable()) raising.join();
        expect_same(trainer.model(), expected);
    }
}

TEST_P(TrainerTest, AbandonedAtAnyStepLeavesNothing) {
    const Case& c = GetParam();
    const std::vector<float> rows = rows_of(c, test_seed());
    for (int steps = 0; steps < 12; ++steps) {
        const auto executor = cpu();
        std::vector<float> mine = rows;
        Trainer trainer(*executor, input_of(c, mine));
        for (int i = 0; i < steps; ++i) trainer.advance();
    }
}

// A device that fails at any call: the model is that of the CPU.
TEST_P(TrainerTest, GoesOnWhereTheDeviceFailed) {
    const Case& c = GetParam();
    const std::vector<float> rows = rows_of(c, test_seed());
    const TrainedModel expected = train(*cpu(), c, rows);
    volatile int fault = static_cast<int>(Fault::failed);
    bool failed = true;
    for (int good_calls = 0; failed; good_calls += c.shape.additive() ? 7 : 1) {
        SCOPED_TRACE(good_calls);
        const auto device =
            make_failing_device(make_stand_in_device(1, size_t{1} << 30), &fault, good_calls);
        FallbackExecutor executor(device->make_executor(), cpu, cpu);
        expect_same(train(executor, c, rows), expected);
        failed = !executor.failure().empty();
        EXPECT_STREQ(executor.name(), failed ? "cpu" : "host");
        ASSERT_LT(good_calls, 200);
    }
}

// An interrupt while the CPU repeats what the device had done.
TEST_P(TrainerTest, GoesOnAfterInterruptsOfTheFallback) {
    const Case& c = GetParam();
    const std::vector<float> rows = rows_of(c, test_seed());
    const TrainedModel expected = train(*cpu(), c, rows);
    volatile int fault = static_cast<int>(Fault::failed);
    volatile std::sig_atomic_t flag = 0;
    for (int good_calls = 14; good_calls < 44; good_calls += 6) {
        SCOPED_TRACE(good_calls);
        const auto device =
            make_failing_device(make_stand_in_device(1, size_t{1} << 30), &fault, good_calls);
        FallbackExecutor executor(
            device->make_executor(), [&] { return make_cpu_executor(1, &flag); }, cpu);
        std::vector<float> mine = rows;
        Trainer trainer(executor, input_of(c, mine));
        for (bool more = true; more;) {
            flag = 1;
            try {
                more = trainer.advance();
            } catch (const Interrupted&) {
                flag = 0;
                more = trainer.advance();
            }
        }
        expect_same(trainer.model(), expected);
    }
}

// Every list has one parent, and lies in its neighborhood.
TEST_P(TrainerTest, ParentsShareTheLists) {
    const Case& c = GetParam();
    const TrainedModel model = train(*cpu(), c, rows_of(c, test_seed()));
    const Parents parents = model.parents();
    ASSERT_EQ(parents.count, c.parents);
    if (parents.count == 0) return;
    const uint32_t dims = c.shape.dims;
    EXPECT_EQ(model.parent_centroids.size(), size_t{c.parents} * dims);
    EXPECT_EQ(parents.first[0], 0u);
    EXPECT_EQ(parents.first[parents.count], c.shape.lists);
    uint32_t own = 0;
    for (uint32_t p = 0; p < parents.count; ++p) {
        ASSERT_LT(parents.first[p], parents.first[p + 1]);
        for (uint32_t list = parents.first[p]; list < parents.first[p + 1]; ++list) {
            const float* centroid = model.centroids.data() + size_t{list} * dims;
            uint32_t best = 0;
            const auto distance = [&](uint32_t parent) {
                double sum = 0;
                for (uint32_t d = 0; d < dims; ++d)
                    sum += std::pow(centroid[d] - parents.centroids[size_t{parent} * dims + d], 2);
                return sum;
            };
            for (uint32_t other = 1; other < parents.count; ++other)
                if (distance(other) < distance(best)) best = other;
            own += best == p;
        }
    }
    // The mean of a part of a cluster lies in it; rounding may move one at the edge.
    EXPECT_GE(own + 2, c.shape.lists);
}

INSTANTIATE_TEST_SUITE_P(Quantizers, TrainerTest, testing::ValuesIn(cases),
                         [](const auto& info) { return std::string(info.param.name); });

TEST(Trainer, RotationLosesLess) {
    const std::vector<float> rows = rows_of(cases[0], 7);
    Case rotated = cases[0];
    rotated.rotate = true;
    EXPECT_LT(train(*cpu(), rotated, rows).quantization_error,
              train(*cpu(), cases[0], rows).quantization_error);
}

// Centroids that bfloat16 cannot tell apart stay as they are.
TEST(Trainer, FarFromZeroTheModelIsWide) {
    const std::vector<float> rows = rows_of(cases[0], test_seed(), 1e5f);
    EXPECT_TRUE(train(*cpu(), cases[0], rows).wide);
}

TEST(Trainer, FewRowsAreEnough) {
    for (const Case& c : {cases[0], cases[4]})
        for (const size_t few : {size_t{1}, size_t{5}, size_t{40}}) {
            std::vector<float> rows = rows_of(c, test_seed());
            rows.resize(few * c.dims);
            const TrainedModel model = train(*cpu(), c, rows);
            EXPECT_EQ(model.training_rows, few);
            EXPECT_TRUE(std::isfinite(model.quantization_error));
        }
}

// A device without memory for the rows: the CPU trains.
TEST(Trainer, WithoutDeviceMemory) {
    const std::vector<float> rows = rows_of(cases[0], test_seed());
    const auto device = make_stand_in_device(1, 1000);
    FallbackExecutor executor(device->make_executor(), cpu, cpu);
    expect_same(train(executor, cases[0], rows), train(*cpu(), cases[0], rows));
    EXPECT_FALSE(executor.failure().empty());
}

}  // namespace
}  // namespace pgwarp
