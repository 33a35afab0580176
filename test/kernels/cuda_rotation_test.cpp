// Rotations and sub-quantizers of four bits on the device against the CPU.

#include "kernels/cuda/executor.h"
#include "kernels/cuda/train/nibbles.h"
#include "kernels/executor.h"

#include <cmath>
#include <string>

#include "test/kernels/cuda_fixture.h"

namespace pgwarp::gpu {
namespace {

class CudaRotationTest : public CudaTest {
  protected:
    // Rows whose dimensions hang together.
    static std::vector<float> mixed_rows(std::mt19937& random, size_t count, uint32_t dims) {
        const std::vector<float> mix = normal_floats(random, size_t{dims} * dims);
        std::vector<float> rows(count * dims);
        for (size_t i = 0; i < count; ++i) {
            std::vector<float> free = normal_floats(random, dims);
            for (uint32_t k = 0; k < dims; ++k) free[k] *= std::pow(0.8f, static_cast<float>(k));
            for (uint32_t d = 0; d < dims; ++d)
                for (uint32_t k = 0; k < dims; ++k)
                    rows[i * dims + d] += mix[size_t{d} * dims + k] * free[k];
        }
        return rows;
    }
    static double off_orthonormal(const std::vector<float>& matrix, uint32_t rows,
                                  uint32_t columns) {
        double most = 0;
        for (uint32_t i = 0; i < rows; ++i)
            for (uint32_t j = 0; j <= i; ++j) {
                double product = 0;
                for (uint32_t d = 0; d < columns; ++d)
                    product +=
                        double{matrix[size_t{i} * columns + d]} * matrix[size_t{j} * columns + d];
                most = std::max(most, std::fabs(product - (i == j)));
            }
        return most;
    }
};

TEST_F(CudaRotationTest, RotatesAsTheCpuDoes) {
    const Context context(options(size_t{1} << 30, size_t{1} << 20));
    std::mt19937 random(test_seed());
    const auto device = make_executor(context);
    const auto host = make_cpu_executor(1, {});
    for (const auto& [from, to, count] : {std::tuple{128u, 128u, size_t{5000}},
                                          {100u, 33u, size_t{1001}},
                                          {7u, 3u, size_t{1}},
                                          {1u, 1u, size_t{77}}}) {
        const std::vector<float> matrix = normal_floats(random, size_t{from} * to);
        const std::vector<float> rows = normal_floats(random, count * from);
        std::vector<float> a(count * to), b(count * to);
        device->rotate({from, to, matrix.data()}, rows.data(), count, a.data());
        host->rotate({from, to, matrix.data()}, rows.data(), count, b.data());
        for (size_t i = 0; i < a.size(); ++i) ASSERT_NEAR(a[i], b[i], 1e-4 * std::sqrt(from));
    }
}

TEST_F(CudaRotationTest, FindsPrincipalDirections) {
    const Context context(options());
    std::mt19937 random(test_seed());
    const uint32_t dims = 20, to = 3;
    std::vector<float> rows = mixed_rows(random, 2000, dims);
    for (float& x : rows) x += 1000;
    std::vector<float> a(size_t{to} * dims), b(a.size());
    const auto device = make_executor(context);
    const auto data = device->take(rows.data(), 2000, dims);
    device->principal_directions({*data, 2000}, to, a.data());
    const auto host = make_cpu_executor(1, {});
    const auto host_data = host->take(rows.data(), 2000, dims);
    host->principal_directions({*host_data, 2000}, to, b.data());
    for (uint32_t i = 0; i < to; ++i) {
        double product = 0;
        for (uint32_t d = 0; d < dims; ++d) product += double{a[i * dims + d]} * b[i * dims + d];
        EXPECT_NEAR(std::fabs(product), 1, 1e-3) << i;
    }
}

// Every kernel of rotations and of halves, with tools that look for mistakes.
TEST_F(CudaRotationTest, EveryKernelOnce) {
    const Context context(options());
    std::mt19937 random(test_seed());
    for (const uint32_t bits : {8u, 4u}) {
        const QuantizerShape shape{16, 1, 4, Metric::l2, bits};
        const size_t count = small_tests() ? 700 : 6000;
        std::vector<float> rows = mixed_rows(random, count, shape.dims);
        const auto train = [&](Executor& executor, double* unrotated) {
            const auto data = executor.take(rows.data(), count, shape.dims);
            std::vector<float> matrix(size_t{shape.dims} * shape.dims);
            std::vector<float> codebook(size_t{shape.dims} * codewords);
            executor.codebook_start(*data, shape, 1, codebook.data());
            for (int i = 0; i < 6; ++i)
                *unrotated = executor.codebook_step(*data, shape, codebook.data());
            executor.rotation_start({*data, count}, shape, 1, matrix.data(), codebook.data());
            EXPECT_LT(off_orthonormal(matrix, shape.dims, shape.dims), 1e-4);
            double error = 0;
            for (int i = 0; i < (small_tests() ? 2 : 10); ++i)
                error =
                    executor.rotation_step({*data, count}, shape, matrix.data(), codebook.data());
            EXPECT_LT(off_orthonormal(matrix, shape.dims, shape.dims), 1e-4);
            return error;
        };
        double device_unrotated = 0, host_unrotated = 0;
        const double device = train(*make_executor(context), &device_unrotated);
        const double host = train(*make_cpu_executor(2, {}), &host_unrotated);
        EXPECT_NEAR(device_unrotated, host_unrotated, 0.05 * host_unrotated) << bits << " bits";
        EXPECT_NEAR(device, host, 0.05 * host) << bits << " bits";
        if (!small_tests()) {
            EXPECT_LT(device, device_unrotated) << bits << " bits";
        }
    }
}

// Codes of four bits, of short pieces and of long ones.
TEST_F(CudaRotationTest, EncodesHalvesAsTheCpuDoesOnce) {
    const Context context(options(size_t{1} << 30, size_t{8} << 20));
    std::mt19937 random(test_seed());
    for (const auto& [dims, m, metric] : {std::tuple{32u, 8u, Metric::l2},
                                          {100u, 2u, Metric::l2},
                                          {33u, 5u, Metric::inner_product},
                                          {2u, 1u, Metric::cosine}}) {
        const QuantizerShape shape{dims, 13, m, metric, 4};
        const size_t count = small_tests() ? 130 : 5001;
        const std::vector<float> centroids = normal_floats(random, size_t{13} * dims, 3);
        const std::vector<float> words = normal_floats(random, size_t{dims} * nibble_words);
        std::vector<float> codebook(size_t{dims} * codewords);
        pair_nibble_words(shape, words.data(), codebook.data());
        const std::vector<float> rows = normal_floats(random, count * dims, 3);
        const Quantizer quantizer{shape, centroids.data(), codebook.data()};
        std::vector<uint32_t> lists[2] = {std::vector<uint32_t>(count),
                                          std::vector<uint32_t>(count)};
        std::vector<uint8_t> codes[2] = {std::vector<uint8_t>(count * m),
                                         std::vector<uint8_t>(count * m)};
        std::vector<float> offsets[2] = {std::vector<float>(count), std::vector<float>(count)};
        make_executor(context)->encode(
            quantizer, {rows.data(), count, lists[0].data(), codes[0].data(), offsets[0].data()});
        make_cpu_executor(2, {})->encode(
            quantizer, {rows.data(), count, lists[1].data(), codes[1].data(), offsets[1].data()});
        size_t same = 0;
        for (size_t i = 0; i < count; ++i) {
            const bool equal = lists[0][i] == lists[1][i] &&
                               std::equal(codes[0].begin() + i * m, codes[0].begin() + (i + 1) * m,
                                          codes[1].begin() + i * m);
            same += equal;
            if (equal) {
                ASSERT_NEAR(offsets[0][i], offsets[1][i], 1e-3);
            }
        }
        EXPECT_GE(static_cast<double>(same), 0.99 * static_cast<double>(count)) << dims;
    }
}

}  // namespace
}  // namespace pgwarp::gpu
