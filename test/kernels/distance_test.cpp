// Every distance kernel, on every instruction set this machine has, against sums in float64.

#include "kernels/distance.h"

#include <cmath>
#include <cstring>
#include <random>
#include <vector>

#include <gtest/gtest.h>
#include "test/kernels/every_target.h"
#include "test/kernels/guarded.h"

namespace pgwarp {
namespace {

using GuardedFloats = Guarded<float>;

struct Reference {
    double squared_l2 = 0, product = 0, l1 = 0, norm_a = 0, norm_b = 0;
    double product_magnitude = 0;  // Σ|aᵢ·bᵢ|: what rounding errors of the product are relative to
};

Reference reference(const float* a, const float* b, size_t dims) {
    Reference sums;
    for (size_t i = 0; i < dims; i++) {
        const double x = a[i], y = b[i];
        sums.squared_l2 += (x - y) * (x - y);
        sums.product += x * y;
        sums.product_magnitude += std::fabs(x * y);
        sums.l1 += std::fabs(x - y);
        sums.norm_a += x * x;
        sums.norm_b += y * y;
    }
    return sums;
}

// A float32 sum in order would be off by at most dims·2⁻²⁴ of the sum of magnitudes; lanes only
// make it better. The square root is what random errors come to, with room to spare.
double tolerance(double magnitude, size_t dims) {
    return magnitude * (4 + 4 * std::sqrt(static_cast<double>(dims))) * 0x1p-24;
}

std::vector<size_t> lengths(std::mt19937& random) {
    std::vector<size_t> result;
    for (size_t dims = 1; dims <= 70; dims++) result.push_back(dims);
    std::uniform_int_distribution<size_t> any(71, 300);
    for (int i = 0; i < 30; i++) result.push_back(any(random));
    for (size_t dims : {255, 256, 257, 784, 1536, 16000}) result.push_back(dims);
    return result;
}

void fill(std::mt19937& random, float* values, size_t count) {
    std::uniform_real_distribution<float> shift(-2, 2);
    std::normal_distribution<float> normal(shift(random), 1);
    for (size_t i = 0; i < count; i++) values[i] = normal(random);
}

class Distance : public EveryTarget {};

TEST_P(Distance, PairsAgreeWithFloat64) {
    for (size_t dims : lengths(random)) {
        SCOPED_TRACE(dims);
        GuardedFloats a(dims), b(dims);
        fill(random, a.data(), dims);
        fill(random, b.data(), dims);
        const Reference expected = reference(a.data(), b.data(), dims);

        EXPECT_NEAR(squared_l2_distance(a.data(), b.data(), dims), expected.squared_l2,
                    tolerance(expected.squared_l2, dims));
        EXPECT_NEAR(dot_product(a.data(), b.data(), dims), expected.product,
                    tolerance(expected.product_magnitude, dims));
        EXPECT_NEAR(l1_distance(a.data(), b.data(), dims), expected.l1,
                    tolerance(expected.l1, dims));
        EXPECT_NEAR(squared_norm(a.data(), dims), expected.norm_a, expected.norm_a * 1e-12);

        const CosineParts parts = cosine_parts(a.data(), b.data(), dims);
        EXPECT_NEAR(parts.product, expected.product, tolerance(expected.product_magnitude, dims));
        EXPECT_NEAR(parts.squared_norm_a, expected.norm_a, tolerance(expected.norm_a, dims));
        EXPECT_NEAR(parts.squared_norm_b, expected.norm_b, tolerance(expected.norm_b, dims));
    }
}

// Small whole numbers have exact sums in any order: no lane may be dropped or counted twice.
TEST_P(Distance, WholeNumbersAreExact) {
    for (size_t dims = 1; dims <= 600; dims++) {
        GuardedFloats a(dims), b(dims);
        for (size_t i = 0; i < dims; i++) {
            a[i] = static_cast<float>(i % 7) - 3;
            b[i] = static_cast<float>(i % 5) - 1;
        }
        const Reference expected = reference(a.data(), b.data(), dims);
        const CosineParts parts = cosine_parts(a.data(), b.data(), dims);
        ASSERT_EQ(squared_l2_distance(a.data(), b.data(), dims), expected.squared_l2) << dims;
        ASSERT_EQ(dot_product(a.data(), b.data(), dims), expected.product) << dims;
        ASSERT_EQ(l1_distance(a.data(), b.data(), dims), expected.l1) << dims;
        ASSERT_EQ(squared_norm(a.data(), dims), expected.norm_a) << dims;
        ASSERT_EQ(parts.product, expected.product) << dims;
        ASSERT_EQ(parts.squared_norm_a, expected.norm_a) << dims;
        ASSERT_EQ(parts.squared_norm_b, expected.norm_b) << dims;
    }
}

TEST_P(Distance, RowsAgreeWithFloat64) {
    std::uniform_int_distribution<size_t> padding(0, 5);
    for (size_t dims : lengths(random)) {
        for (size_t count : {0, 1, 2, 3, 4, 5, 8, 11}) {
            SCOPED_TRACE(testing::Message() << dims << " dims, " << count << " rows");
            const size_t stride = dims + padding(random);
            // The last row ends at the guard page: what follows it is not there to be read.
            GuardedFloats query(dims), rows(count ? (count - 1) * stride + dims : 0);
            fill(random, query.data(), dims);
            fill(random, rows.data(), count ? (count - 1) * stride + dims : 0);
            std::vector<float> distances(count + 1, -7), products(count + 1, -7);
            squared_l2_distances(query.data(), Rows{rows.data(), stride, count}, dims,
                                 distances.data());
            dot_products(query.data(), Rows{rows.data(), stride, count}, dims, products.data());
            for (size_t i = 0; i < count; i++) {
                const Reference expected = reference(query.data(), &rows[i * stride], dims);
                EXPECT_NEAR(distances[i], expected.squared_l2,
                            tolerance(expected.squared_l2, dims));
                EXPECT_NEAR(products[i], expected.product,
                            tolerance(expected.product_magnitude, dims));
            }
            EXPECT_EQ(distances[count], -7) << "wrote past the last row";
            EXPECT_EQ(products[count], -7) << "wrote past the last row";
        }
    }
}

TEST_P(Distance, EqualRowsTieWhereverTheyStand) {
    for (size_t dims : {3, 100, 255, 784}) {
        const size_t count = 13;
        std::vector<float> query(dims), rows(count * dims), distances(count), products(count);
        fill(random, query.data(), dims);
        fill(random, rows.data(), dims);
        for (size_t i = 1; i < count; i++) {
            std::memcpy(&rows[i * dims], rows.data(), dims * sizeof(float));
        }
        squared_l2_distances(query.data(), Rows{rows.data(), dims, count}, dims, distances.data());
        dot_products(query.data(), Rows{rows.data(), dims, count}, dims, products.data());
        for (size_t i = 1; i < count; i++) {
            EXPECT_EQ(distances[i], distances[0]) << dims;
            EXPECT_EQ(products[i], products[0]) << dims;
        }
    }
}

// Rows in sixteen bits are the rows they stand for, to the last bit of the distance.
TEST_P(Distance, HalfRowsAreTheRowsTheyStandFor) {
    std::uniform_int_distribution<size_t> padding(0, 5);
    for (size_t dims : lengths(random)) {
        for (size_t count : {0, 1, 3, 4, 5, 11}) {
            SCOPED_TRACE(testing::Message() << dims << " dims, " << count << " rows");
            const size_t stride = dims + padding(random);
            const size_t elements = count ? (count - 1) * stride + dims : 0;
            GuardedFloats query(dims), rows(elements);
            Guarded<bfloat16> half(elements);
            fill(random, query.data(), dims);
            fill(random, rows.data(), elements);
            for (size_t i = 0; i < elements; i++) {
                half[i] = to_bfloat16(rows[i]);
                rows[i] = to_float(half[i]);
            }
            std::vector<float> expected(count), found(count + 1, -7);
            squared_l2_distances(query.data(), Rows{rows.data(), stride, count}, dims,
                                 expected.data());
            squared_l2_distances(query.data(), HalfRows{half.data(), stride, count}, dims,
                                 found.data());
            for (size_t i = 0; i < count; i++) EXPECT_EQ(found[i], expected[i]);
            EXPECT_EQ(found[count], -7) << "wrote past the last row";
            dot_products(query.data(), Rows{rows.data(), stride, count}, dims, expected.data());
            dot_products(query.data(), HalfRows{half.data(), stride, count}, dims, found.data());
            for (size_t i = 0; i < count; i++) EXPECT_EQ(found[i], expected[i]);
            EXPECT_EQ(found[count], -7) << "wrote past the last row";
        }
    }
}

TEST_P(Distance, OverflowGivesInfinityAndNotNan) {
    for (size_t dims : {1, 5, 64, 300}) {
        const std::vector<float> a(dims, 3e38f), b(dims, -3e38f);
        EXPECT_EQ(squared_l2_distance(a.data(), b.data(), dims), INFINITY);
        EXPECT_EQ(l1_distance(a.data(), b.data(), dims), INFINITY);
        EXPECT_EQ(dot_product(a.data(), b.data(), dims), -INFINITY);
        const double element = a[0];
        EXPECT_NEAR(squared_norm(a.data(), dims) / (element * element * static_cast<double>(dims)),
                    1, 1e-12);
    }
}

PGWARP_EVERY_TARGET(Distance);

}  // namespace
}  // namespace pgwarp
