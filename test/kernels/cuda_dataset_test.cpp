// What an executor does with the rows of a data set, on the device against the CPU: with rows that
// are resident, with rows that are streamed, and with rows that become resident on the way.

#include "kernels/cuda/executor.h"
#include "kernels/cuda/train/dataset.h"
#include "kernels/cuda/train/nibbles.h"
#include "kernels/executor.h"
#include "kernels/trainer.h"

#include <cmath>
#include <string>

#include "test/kernels/cuda_fixture.h"

namespace pgwarp::gpu {
namespace {

class CudaDatasetTest : public CudaTest {
  protected:
    // Budgets that make rows of this size resident, or not.
    enum class Place { resident, streamed };
    static DeviceOptions place(Place wanted, size_t floats) {
        return wanted == Place::resident ? options()
                                         : options(floats * sizeof(float), size_t{1} << 20);
    }

    // Compares rows that a start of k-means draws: both draw the same.
    static void expect_same_rows(Executor& cuda, Dataset& on_device, Executor& cpu,
                                 Dataset& on_host, double off) {
        const uint32_t dims = static_cast<DeviceRows&>(on_device).dims();
        const uint32_t drawn = static_cast<uint32_t>(
            std::min<size_t>(4000, static_cast<DeviceRows&>(on_device).count()));
        std::vector<float> a(size_t{drawn} * dims), b(a.size());
        cuda.kmeans_start(on_device, drawn, test_seed(), a.data());
        cpu.kmeans_start(on_host, drawn, test_seed(), b.data());
        expect_near(a, b.data(), off);
    }
    static void expect_near(const std::vector<float>& a, const float* b, double off) {
        for (size_t i = 0; i < a.size(); ++i) ASSERT_NEAR(a[i], b[i], off) << i;
    }
    // Rows of a random matrix with orthonormal rows, by Gram and Schmidt.
    static std::vector<float> orthonormal(std::mt19937& random, uint32_t to, uint32_t from) {
        std::vector<float> matrix = normal_floats(random, size_t{to} * from);
        for (uint32_t i = 0; i < to; ++i) {
            float* row = matrix.data() + size_t{i} * from;
            for (uint32_t j = 0; j <= i; ++j) {
                const float* other = matrix.data() + size_t{j} * from;
                double product = 0;
                for (uint32_t d = 0; d < from; ++d) product += double{row[d]} * other[d];
                for (uint32_t d = 0; d < from; ++d)
                    row[d] = static_cast<float>(j < i ? row[d] - product * other[d]
                                                      : row[d] / std::sqrt(product));
            }
        }
        return matrix;
    }
    // Rows in well separated clusters: device and CPU agree on the nearest centroid.
    static std::vector<float> clustered(std::mt19937& random, size_t count, uint32_t dims,
                                        const std::vector<float>& centres) {
        const size_t clusters = centres.size() / dims;
        std::vector<float> rows = normal_floats(random, count * dims, 0.1f);
        for (size_t i = 0; i < count; ++i) {
            const size_t c = random() % clusters;
            for (uint32_t d = 0; d < dims; ++d) rows[i * dims + d] += centres[c * dims + d];
        }
        return rows;
    }
};

TEST_F(CudaDatasetTest, ChangesRowsOnce) {
    std::mt19937 random(test_seed());
    const uint32_t from = 40, dims = 24, clusters = 5;
    const size_t count = small_tests() ? 30000 : 100000;
    const std::vector<float> centres = normal_floats(random, clusters * from, 10);
    const std::vector<float> rows = clustered(random, count, from, centres);
    const std::vector<float> reduction = orthonormal(random, dims, from);
    const std::vector<float> rotation = orthonormal(random, dims, dims);
    std::vector<float> centroids(clusters * dims);
    const auto cpu = make_cpu_executor(2, {});
    cpu->rotate({from, dims, reduction.data()}, centres.data(), clusters, centroids.data());
    // Some rows are kept that fit, or nearly all, that do not.
    for (const Place where : {Place::resident, Place::streamed})
        for (const size_t kept : {count - 1, count / 10}) {
            SCOPED_TRACE(std::to_string(kept) +
                         (where == Place::resident ? " resident" : " streamed"));
            const Context context(place(where, rows.size()));
            const auto cuda = make_executor(context);
            std::vector<float> mine = rows, theirs = rows;
            const auto on_device = cuda->take(mine.data(), count, from);
            const auto on_host = cpu->take(theirs.data(), count, from);
            EXPECT_EQ(static_cast<DeviceRows&>(*on_device).resident(), where == Place::resident);
            cuda->rotate_rows(*on_device, {from, dims, reduction.data()});
            cpu->rotate_rows(*on_host, {from, dims, reduction.data()});
            expect_same_rows(*cuda, *on_device, *cpu, *on_host, 1e-3);
            cuda->keep_first(*on_device, kept);
            cpu->keep_first(*on_host, kept);
            expect_same_rows(*cuda, *on_device, *cpu, *on_host, 1e-3);
            cuda->make_residuals(*on_device, clusters, centroids.data());
            cpu->make_residuals(*on_host, clusters, centroids.data());
            expect_same_rows(*cuda, *on_device, *cpu, *on_host, 1e-3);
            cuda->rotate_rows(*on_device, {dims, dims, rotation.data()});
            cpu->rotate_rows(*on_host, {dims, dims, rotation.data()});
            expect_same_rows(*cuda, *on_device, *cpu, *on_host, 1e-3);
            const auto& changed = static_cast<DeviceRows&>(*on_device);
            EXPECT_EQ(changed.count(), kept);
            EXPECT_EQ(changed.dims(), dims);
            float largest = 0;
            for (size_t i = 0; i < kept * dims; ++i)
                largest = std::max(largest, std::fabs(theirs[i]));
            EXPECT_GE(changed.largest(), largest * 0.999f);
            // A pass over the changed rows.
            std::vector<float> a(dims), b(dims);
            cuda->kmeans_step(*on_device, 1, a.data());
            cpu->kmeans_step(*on_host, 1, b.data());
            expect_near(a, b.data(), 1e-3);
            // The device leaves the caller's rows alone: the CPU may have to take them.
            EXPECT_EQ(mine, rows);
        }
}

TEST_F(CudaDatasetTest, MeasuresVarianceOnce) {
    std::mt19937 random(test_seed());
    const uint32_t dims = 33;
    const size_t count = small_tests() ? 40000 : 100000;
    std::vector<float> rows = normal_floats(random, count * dims);
    for (size_t i = 0; i < rows.size(); ++i) rows[i] += static_cast<float>(i % dims) * 30;
    const auto cpu = make_cpu_executor(1, {});
    const auto on_host = cpu->take(rows.data(), count, dims);
    for (const Place where : {Place::resident, Place::streamed}) {
        const Context context(place(where, rows.size()));
        const auto cuda = make_executor(context);
        const auto on_device = cuda->take(rows.data(), count, dims);
        for (const size_t first : {count, count / 3, size_t{1}, size_t{0}}) {
            const double expected = cpu->variance({*on_host, first});
            EXPECT_NEAR(cuda->variance({*on_device, first}), expected, 1e-4 * expected + 1e-3);
        }
    }
}

TEST_F(CudaDatasetTest, EncodesResidualsOnce) {
    std::mt19937 random(test_seed());
    const uint32_t dims = 20;
    const size_t count = 60000, first = 2500;
    std::vector<float> rows = normal_floats(random, count * dims);
    const std::vector<float> rotation = orthonormal(random, dims, dims);
    const auto cpu = make_cpu_executor(2, {});
    const auto on_host = cpu->take(rows.data(), count, dims);
    for (const Place where : {Place::resident, Place::streamed}) {
        const Context context(place(where, rows.size() * 3 / 2));
        const auto cuda = make_executor(context);
        const auto on_device = cuda->take(rows.data(), count, dims);
        for (const QuantizerShape& shape :
             {QuantizerShape{dims, 1, 5, Metric::l2}, QuantizerShape{dims, 1, 6, Metric::l2, 4},
              QuantizerShape{dims, 1, 2, Metric::l2, 8, 4}})
            for (const bool rotated : {false, true}) {
                if (rotated && shape.additive()) continue;
                SCOPED_TRACE(std::to_string(shape.bits) + " bits" +
                             (shape.additive() ? ", additive" : "") + (rotated ? ", rotated" : ""));
                std::vector<float> codebook =
                    normal_floats(random, size_t{shape.codebook_rows()} * codewords, 0.5f);
                if (!shape.additive()) cpu->codebook_start(*on_host, shape, 3, codebook.data());
                Quantizer quantizer{shape, nullptr, codebook.data()};
                if (rotated) quantizer.rotation = {dims, dims, rotation.data()};
                std::vector<uint8_t> codes[2] = {std::vector<uint8_t>(first * shape.m),
                                                 std::vector<uint8_t>(first * shape.m)};
                cuda->encode_residuals({*on_device, first}, quantizer, codes[0].data());
                cpu->encode_residuals({*on_host, first}, quantizer, codes[1].data());
                size_t same = 0;
                for (size_t i = 0; i < codes[0].size(); ++i) same += codes[0][i] == codes[1][i];
                if (!shape.additive()) {
                    EXPECT_GE(static_cast<double>(same),
                              0.99 * static_cast<double>(codes[0].size()));
                }
                if (rotated) continue;
                double errors[2];
                for (int of = 0; of < 2; ++of) {
                    const double expected = cpu->code_error({*on_host, first}, shape,
                                                            codebook.data(), codes[of].data());
                    EXPECT_NEAR(cuda->code_error({*on_device, first}, shape, codebook.data(),
                                                 codes[of].data()),
                                expected, 1e-4 * expected);
                    errors[of] = expected;
                }
                EXPECT_NEAR(errors[0], errors[1], 0.03 * errors[1]);
            }
    }
}

// Rotations of the first rows; with fewer dimensions, and of streamed rows.
TEST_F(CudaDatasetTest, TrainsRotationsOnce) {
    std::mt19937 random(test_seed());
    const uint32_t from = 24;
    const size_t count = small_tests() ? 30000 : 60000, first = small_tests() ? 3000 : 20000;
    std::vector<float> rows = normal_floats(random, count * from);
    const std::vector<float> mix = orthonormal(random, from, from);
    for (size_t i = 0; i < rows.size(); ++i)
        rows[i] *= std::pow(0.85f, static_cast<float>(i % from));
    const auto cpu = make_cpu_executor(2, {});
    const auto on_host = cpu->take(rows.data(), count, from);
    cpu->rotate_rows(*on_host, {from, from, mix.data()});
    for (const Place where : {Place::resident, Place::streamed})
        for (const uint32_t dims : {from, 15u})
            for (const uint32_t bits : {8u, 4u}) {
                SCOPED_TRACE(std::to_string(dims) + " dims, " + std::to_string(bits) + " bits");
                const QuantizerShape shape{dims, 1, 5, Metric::l2, bits};
                const Context context(place(where, rows.size() * 3 / 2));
                const auto cuda = make_executor(context);
                const auto on_device = cuda->take(rows.data(), count, from);
                double errors[2];
                for (const int run : {0, 1}) {
                    Executor& executor = run == 0 ? *cuda : *cpu;
                    const FirstRows some{run == 0 ? *on_device : *on_host, first};
                    std::vector<float> matrix(size_t{dims} * from);
                    std::vector<float> codebook(size_t{dims} * codewords);
                    executor.rotation_start(some, shape, 1, matrix.data(), codebook.data());
                    for (int i = 0; i < 6; ++i)
                        errors[run] =
                            executor.rotation_step(some, shape, matrix.data(), codebook.data());
                }
                EXPECT_NEAR(errors[0], errors[1], 0.05 * errors[1]);
            }
}

// Every kernel of these operations, with tools that look for mistakes.
TEST_F(CudaDatasetTest, EveryKernelOnce) {
    std::mt19937 random(test_seed());
    const Context context(options());
    const auto cuda = make_executor(context), cpu = make_cpu_executor(1, {});
    const uint32_t from = 19, dims = 11;
    const size_t count = 700;
    std::vector<float> rows = normal_floats(random, count * from), theirs = rows;
    const std::vector<float> reduction = orthonormal(random, dims, from);
    const auto on_device = cuda->take(rows.data(), count, from);
    const auto on_host = cpu->take(theirs.data(), count, from);
    const QuantizerShape shape{dims, 1, 3, Metric::l2};
    std::vector<float> matrix(size_t{dims} * from), codebook(size_t{dims} * codewords);
    cuda->principal_directions({*on_device, count}, dims, matrix.data());
    cuda->rotation_start({*on_device, count}, shape, 1, matrix.data(), codebook.data());
    cuda->rotation_step({*on_device, count}, shape, matrix.data(), codebook.data());
    for (Executor* executor : {cuda.get(), cpu.get()}) {
        Dataset& data = executor == cuda.get() ? *on_device : *on_host;
        executor->rotate_rows(data, {from, dims, reduction.data()});
        executor->keep_first(data, 600);
    }
    expect_same_rows(*cuda, *on_device, *cpu, *on_host, 1e-4);
    EXPECT_NEAR(cuda->variance({*on_device, 600}), cpu->variance({*on_host, 600}), 1e-2);
    for (const QuantizerShape& of : {shape, QuantizerShape{dims, 1, 2, Metric::l2, 8, 2}}) {
        std::vector<float> words = normal_floats(random, size_t{of.codebook_rows()} * codewords);
        std::vector<uint8_t> codes(500 * of.m);
        cuda->encode_residuals({*on_device, 500}, {of, nullptr, words.data()}, codes.data());
        const double expected = cpu->code_error({*on_host, 500}, of, words.data(), codes.data());
        EXPECT_NEAR(cuda->code_error({*on_device, 500}, of, words.data(), codes.data()), expected,
                    1e-4 * expected);
    }
}

// Whole trainings: as good as the CPU's.
TEST_F(CudaDatasetTest, TrainsModelsAsTheCpuDoes) {
    if (small_tests()) GTEST_SKIP() << "kernels are covered by the tests above";
    std::mt19937 random(test_seed());
    const uint32_t from = 32;
    const size_t count = 40000;
    const std::vector<float> centres = normal_floats(random, 50 * from, 2);
    std::vector<float> rows = clustered(random, count, from, centres);
    const std::vector<float> noise = normal_floats(random, rows.size());
    for (size_t i = 0; i < rows.size(); ++i)
        rows[i] += noise[i] * std::pow(0.9f, static_cast<float>(i % from));
    struct Case {
        QuantizerShape shape;
        bool rotate;
    };
    // Several lists for each cluster: with fewer lists than clusters, which clusters share one is a
    // matter of luck, and most of the error.
    for (const Case& c : {Case{{32, 200, 8, Metric::l2}, false},
                          {{32, 200, 8, Metric::inner_product, 4}, true},
                          {{20, 200, 5, Metric::l2}, true},
                          {{32, 200, 4, Metric::l2, 8, 8}, false}})
        for (const Place where : {Place::resident, Place::streamed}) {
            // Too little for all rows; enough for the residuals, a rotated copy of them, and the
            // tables of an additive quantizer.
            const Context context(where == Place::resident
                                      ? options()
                                      : options(c.shape.additive()
                                                    ? size_t{64} << 20
                                                    : rows.size() * sizeof(float) * 2,
                                                size_t{1} << 20));
            double errors[2];
            for (const int run : {0, 1}) {
                const auto executor = run == 0 ? make_executor(context) : make_cpu_executor(2, {});
                std::vector<float> mine = rows;
                TrainingInput input = {};
                input.rows = mine.data();
                input.count = count;
                input.dims = from;
                input.shape = c.shape;
                input.rotate = c.rotate;
                input.seed = 5;
                input.variance_rows = 30000;
                input.direction_rows = 20000;
                input.residual_rows = 20000;
                input.rotation_rows = 10000;
                input.error_rows = 5000;
                Trainer trainer(*executor, input);
                while (trainer.advance()) {
                }
                errors[run] = trainer.model().quantization_error;
                EXPECT_EQ(trainer.model().matrix.empty(), !c.rotate);
            }
            EXPECT_NEAR(errors[0], errors[1], 0.05 * errors[1]) << c.shape.m;
        }
}

// An interrupted change is done by the next call.
TEST_F(CudaDatasetTest, ContinuesAfterInterrupts) {
    std::mt19937 random(test_seed());
    const uint32_t dims = 12;
    const size_t count = 5000;
    volatile std::sig_atomic_t flag = 0;
    DeviceOptions wanted = options();
    wanted.interrupts = Interrupts(&flag);
    const Context context(wanted);
    const auto cuda = make_executor(context);
    const auto cpu = make_cpu_executor(1, {});
    std::vector<float> rows = normal_floats(random, count * dims), theirs = rows;
    const std::vector<float> rotation = orthonormal(random, dims, dims);
    const auto on_device = cuda->take(rows.data(), count, dims);
    const auto on_host = cpu->take(theirs.data(), count, dims);
    flag = 1;
    EXPECT_THROW(cuda->rotate_rows(*on_device, {dims, dims, rotation.data()}), Interrupted);
    EXPECT_THROW(cuda->variance({*on_device, count}), Interrupted);
    flag = 0;
    cuda->rotate_rows(*on_device, {dims, dims, rotation.data()});
    cpu->rotate_rows(*on_host, {dims, dims, rotation.data()});
    expect_same_rows(*cuda, *on_device, *cpu, *on_host, 1e-4);
}

}  // namespace
}  // namespace pgwarp::gpu
