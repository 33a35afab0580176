// What an executor does with the rows of a data set, on the CPU, against float64.

#include "kernels/executor.h"
#include "test/kernels/seed.h"

#include <cmath>
#include <gtest/gtest.h>
#include <random>
#include <vector>

namespace pgwarp {
namespace {

std::vector<float> random_floats(std::mt19937& random, size_t count) {
    std::normal_distribution<float> normal;
    std::vector<float> values(count);
    for (float& x : values) x = normal(random);
    return values;
}

TEST(Dataset, RotatesInPlace) {
    std::mt19937 random(test_seed());
    const auto executor = make_cpu_executor(2, {});
    for (const auto& [from, to, count] : {std::tuple{9u, 9u, size_t{2500}},
                                          {9u, 4u, size_t{2500}},
                                          {5u, 1u, size_t{1024}},
                                          {3u, 2u, size_t{1}}}) {
        const std::vector<float> matrix = random_floats(random, size_t{from} * to);
        std::vector<float> rows = random_floats(random, count * from);
        std::vector<float> expected(count * to);
        executor->rotate({from, to, matrix.data()}, rows.data(), count, expected.data());
        const auto data = executor->take(rows.data(), count, from);
        executor->rotate_rows(*data, {from, to, matrix.data()});
        rows.resize(count * to);
        EXPECT_EQ(rows, expected);
        // The data set has the new dimensions.
        std::vector<float> centroids(to);
        executor->kmeans_start(*data, 1, 1, centroids.data());
        executor->kmeans_step(*data, 1, centroids.data());
        for (uint32_t d = 0; d < to; ++d) {
            double mean = 0;
            for (size_t i = 0; i < count; ++i)
                mean += expected[i * to + d] / static_cast<double>(count);
            EXPECT_NEAR(centroids[d], mean, 1e-4);
        }
    }
}

TEST(Dataset, KeepsTheFirstRows) {
    std::mt19937 random(test_seed());
    const auto executor = make_cpu_executor(1, {});
    std::vector<float> rows = random_floats(random, 300);
    const std::vector<float> before = rows;
    const auto data = executor->take(rows.data(), 100, 3);
    executor->keep_first(*data, 1000);
    executor->keep_first(*data, 40);
    const std::vector<float> centroid = {1, 2, 3};
    executor->make_residuals(*data, 1, centroid.data());
    for (size_t i = 0; i < rows.size(); ++i)
        EXPECT_EQ(rows[i], i < 120 ? before[i] - centroid[i % 3] : before[i]);
}

TEST(Dataset, MeasuresVariance) {
    std::mt19937 random(test_seed());
    const auto executor = make_cpu_executor(1, {});
    std::vector<float> rows = random_floats(random, 7000);
    for (float& x : rows) x += 100;
    const auto data = executor->take(rows.data(), 1000, 7);
    for (const size_t count : {size_t{1000}, size_t{333}, size_t{1}, size_t{0}}) {
        double variance = 0;
        for (uint32_t d = 0; d < 7; ++d) {
            double mean = 0;
            for (size_t i = 0; i < count; ++i) mean += rows[i * 7 + d] / static_cast<double>(count);
            for (size_t i = 0; i < count; ++i)
                variance += std::pow(rows[i * 7 + d] - mean, 2) / static_cast<double>(count);
        }
        EXPECT_NEAR(executor->variance({*data, count}), variance, 1e-6);
    }
}

// Codes of residuals are those of rows with one list, at the origin; the error is that of the sums
// of their codewords.
TEST(Dataset, EncodesResiduals) {
    std::mt19937 random(test_seed());
    const auto executor = make_cpu_executor(2, {});
    const uint32_t dims = 10;
    const size_t count = 2100, first = 1500;
    std::vector<float> rows = random_floats(random, count * dims);
    const auto data = executor->take(rows.data(), count, dims);
    const std::vector<float> matrix = random_floats(random, dims * dims), origin(dims);
    for (const QuantizerShape& shape :
         {QuantizerShape{dims, 1, 3, Metric::l2}, QuantizerShape{dims, 1, 3, Metric::l2, 4},
          QuantizerShape{dims, 1, 2, Metric::l2, 8, 4}})
        for (const bool rotated : {false, true}) {
            std::vector<float> codebook =
                random_floats(random, size_t{shape.codebook_rows()} * codewords);
            const auto draw = executor->take(rows.data(), count, dims);
            if (!shape.additive()) executor->codebook_start(*draw, shape, 1, codebook.data());
            Quantizer quantizer{shape, nullptr, codebook.data()};
            std::vector<float> rotated_rows = rows;
            if (rotated) {
                quantizer.rotation = {dims, dims, matrix.data()};
                executor->rotate(quantizer.rotation, rows.data(), count, rotated_rows.data());
            }
            std::vector<uint8_t> codes(first * shape.m), expected(first * shape.m);
            executor->encode_residuals({*data, first}, quantizer, codes.data());
            std::vector<uint32_t> lists(first);
            std::vector<float> offsets(first);
            quantizer.centroids = origin.data();
            // In the same chunks: few rows together round differently.
            for (size_t begin = 0; begin < first; begin += 1024)
                executor->encode(quantizer, {rotated_rows.data() + begin * dims,
                                             std::min<size_t>(1024, first - begin), lists.data(),
                                             expected.data() + begin * shape.m, offsets.data()});
            EXPECT_EQ(codes, expected);
            if (rotated) continue;
            double error = 0;
            for (size_t i = 0; i < first; ++i) {
                std::vector<double> off(rows.begin() + static_cast<ptrdiff_t>(i * dims),
                                        rows.begin() + static_cast<ptrdiff_t>((i + 1) * dims));
                for (uint32_t j = 0; j < shape.m; ++j)
                    for (uint32_t row = shape.piece_begin(j); row < shape.piece_begin(j + 1); ++row)
                        off[shape.dim_of_row(row)] -=
                            codebook[size_t{row} * codewords + codes[i * shape.m + j]];
                for (const double x : off) error += x * x / static_cast<double>(first);
            }
            EXPECT_NEAR(executor->code_error({*data, first}, shape, codebook.data(), codes.data()),
                        error, 1e-6 * error);
        }
}

}  // namespace
}  // namespace pgwarp
