// Rotations, against float64; and that OPQ does what it is for.

#include "kernels/rotation.h"

#include "kernels/common/linear_algebra.h"
#include "kernels/product_quantizer.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include <gtest/gtest.h>
#include "test/kernels/every_target.h"
#include "test/kernels/reference.h"

namespace pgwarp {
namespace {

using RotationTest = EveryTarget;

// How far the rows of a matrix, (rows)(columns), are from orthonormal.
double off_orthonormal(const std::vector<float>& matrix, size_t rows, size_t columns) {
    double most = 0;
    for (size_t i = 0; i < rows; ++i)
        for (size_t j = 0; j <= i; ++j)
            most =
                std::max(most, std::fabs(reference_product(matrix.data() + i * columns,
                                                           matrix.data() + j * columns, columns) -
                                         (i == j)));
    return most;
}

// Rows whose dimensions hang together: what a rotation can undo.
std::vector<float> correlated_rows(std::mt19937& random, size_t count, size_t dims) {
    const std::vector<float> mix = normal_floats(random, dims * dims);
    std::vector<float> rows(count * dims);
    for (size_t i = 0; i < count; ++i) {
        std::vector<float> free = normal_floats(random, dims);
        for (size_t k = 0; k < dims; ++k) free[k] *= std::pow(0.8f, static_cast<float>(k));
        for (size_t d = 0; d < dims; ++d)
            rows[i * dims + d] =
                static_cast<float>(reference_product(mix.data() + d * dims, free.data(), dims));
    }
    return rows;
}

TEST_P(RotationTest, RotatesAsFloat64Does) {
    for (int round = 0; round < 10; ++round) {
        const auto from = static_cast<uint32_t>(between(random, 1, 300));
        const auto to = static_cast<uint32_t>(between(random, 1, from));
        const size_t count = between(random, 1, 200);
        const std::vector<float> matrix = normal_floats(random, size_t{from} * to);
        const std::vector<float> rows = normal_floats(random, count * from);
        std::vector<float> out(count * to);
        Workers workers(2);
        rotate(workers, {from, to, matrix.data()}, rows.data(), count, out.data());
        for (size_t i = 0; i < count; ++i)
            for (uint32_t d = 0; d < to; ++d)
                ASSERT_NEAR(out[i * to + d],
                            reference_product(rows.data() + i * from,
                                              matrix.data() + size_t{d} * from, from),
                            1e-4 * std::sqrt(from) * 4);
    }
}

TEST_P(RotationTest, StartsWithPrincipalDirections) {
    const QuantizerShape shape{12, 1, 3, Metric::l2};
    const uint32_t from = 20;
    const std::vector<float> rows = correlated_rows(random, 500, from);
    std::vector<float> matrix(size_t{shape.dims} * from);
    Workers workers(2);
    rotation_start(workers, shape, rows.data(), 500, from, matrix.data());
    EXPECT_LT(off_orthonormal(matrix, shape.dims, from), 1e-4);

    // Uncorrelated dimensions, and each sub-quantizer with a share of the strong ones.
    std::vector<float> rotated(500 * size_t{shape.dims});
    rotate(workers, {from, shape.dims, matrix.data()}, rows.data(), 500, rotated.data());
    std::vector<double> variance(shape.dims);
    for (size_t i = 0; i < 500; ++i)
        for (uint32_t d = 0; d < shape.dims; ++d)
            variance[d] += double{rotated[i * shape.dims + d]} * rotated[i * shape.dims + d];
    for (uint32_t a = 0; a < shape.dims; ++a)
        for (uint32_t b = 0; b < a; ++b) {
            double product = 0;
            for (size_t i = 0; i < 500; ++i)
                product += double{rotated[i * shape.dims + a]} * rotated[i * shape.dims + b];
            EXPECT_LT(std::fabs(product), 1e-3 * std::sqrt(variance[a] * variance[b]) + 1e-3);
        }
    std::vector<double> logs(shape.m);
    for (uint32_t j = 0; j < shape.m; ++j)
        for (uint32_t d = shape.piece_begin(j); d < shape.piece_begin(j + 1); ++d)
            logs[j] += std::log(variance[d]);
    // The strongest together in one, and the weakest in another, would be this far apart.
    std::sort(variance.begin(), variance.end());
    const uint32_t piece = shape.dims / shape.m;
    double apart = 0;
    for (uint32_t d = 0; d < piece; ++d)
        apart += std::log(variance[shape.dims - 1 - d]) - std::log(variance[d]);
    const auto [least, most] = std::minmax_element(logs.begin(), logs.end());
    EXPECT_LT(*most - *least, apart / 2);
}

// The error falls from step to step, and ends below that of a plain quantizer.
TEST_P(RotationTest, LosesLessThanWithoutRotation) {
    for (const uint32_t to : {16u, 11u}) {
        const QuantizerShape shape{to, 1, 4, Metric::l2};
        const uint32_t from = 16;
        const size_t count = 3000;
        const std::vector<float> rows = correlated_rows(random, count, from);
        std::vector<float> matrix(size_t{to} * from), codebook(size_t{to} * codewords);
        std::vector<float> rotated(count * to);
        Workers workers(2);
        rotation_start(workers, shape, rows.data(), count, from, matrix.data());
        rotate(workers, {from, to, matrix.data()}, rows.data(), count, rotated.data());
        codebook_start(shape, rotated.data(), count, 1, codebook.data());
        double before = INFINITY;
        for (int i = 0; i < 10; ++i) {
            const double error = rotation_step(workers, shape, rows.data(), count, from,
                                               matrix.data(), codebook.data());
            // A codeword moved to where the error is may cost a little at first.
            EXPECT_LT(error, before * 1.02) << "step " << i;
            before = error;
            ASSERT_LT(off_orthonormal(matrix, to, from), 1e-4);
        }
        const QuantizerShape plain{from, 1, 4, Metric::l2};
        std::vector<float> plain_codebook(size_t{from} * codewords);
        codebook_start(plain, rows.data(), count, 1, plain_codebook.data());
        double plain_error = 0;
        for (int i = 0; i < 10; ++i)
            plain_error = codebook_step(workers, plain, rows.data(), count, plain_codebook.data());
        EXPECT_LT(before, 0.9 * plain_error) << to << " of " << from;
    }
}

// The matrix nearest to a rotation with noise is that rotation, also where a dimension is empty.
TEST_P(RotationTest, FindsTheNearestOrthonormal) {
    for (int round = 0; round < 10; ++round) {
        const auto columns = static_cast<uint32_t>(between(random, 1, 60));
        const auto rows = static_cast<uint32_t>(between(random, 1, columns));
        std::vector<float> matrix = normal_floats(random, size_t{rows} * columns);
        std::vector<float> first(matrix.size()), again(matrix.size());
        std::vector<float> input = matrix;
        nearest_orthonormal(input.data(), rows, columns, first.data());
        ASSERT_LT(off_orthonormal(first, rows, columns), 1e-4);
        // No other has a larger product with it: the nearest to Q S, S positive, is Q.
        const double product = reference_product(first.data(), matrix.data(), matrix.size());
        for (int other = 0; other < 5; ++other) {
            std::vector<float> noise = normal_floats(random, matrix.size());
            nearest_orthonormal(noise.data(), rows, columns, again.data());
            EXPECT_GE(product * 1.0001 + 1e-6,
                      reference_product(again.data(), matrix.data(), matrix.size()));
        }
    }
    std::vector<float> flat(30 * 30, 0.0f), nearest(30 * 30);
    for (int i = 0; i < 20; ++i) flat[static_cast<size_t>(i) * 31] = 1e-30f;
    nearest_orthonormal(flat.data(), 30, 30, nearest.data());
    EXPECT_LT(off_orthonormal(nearest, 30, 30), 1e-4);
}

PGWARP_EVERY_TARGET(RotationTest);

}  // namespace
}  // namespace pgwarp
