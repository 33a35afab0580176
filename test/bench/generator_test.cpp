#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "bench/generator.h"
#include "bench/metric.h"
#include "bench/random.h"

namespace pgwarp::bench {
namespace {

// Two far groups, at 10 and at 200, of bytes; the last dimension is always zero.
Vectors two_groups(size_t rows, size_t dims) {
    Random random(3);
    Vectors vectors{rows, dims, std::vector<float>(rows * dims)};
    for (size_t row = 0; row < rows; row++)
        for (size_t i = 0; i + 1 < dims; i++)
            vectors.values[row * dims + i] =
                float((row % 2 == 0 ? 10 : 200) + int(random.below(9)));
    return vectors;
}

TEST(Generator, BeginsWithTheRealRows) {
    const Vectors base = two_groups(100, 8);
    const Generator generator(base, true, 1);
    for (size_t row = 0; row < base.rows; row++)
        EXPECT_TRUE(std::ranges::equal(generator.row(row), base.row(row)));
}

TEST(Generator, RowsDependOnSeedAndNumberAlone) {
    const Vectors base = two_groups(100, 8);
    const Generator one(base, true, 1), again(base, true, 1), other(base, true, 2);
    const std::vector<float> row = one.row(777);
    one.row(5000);
    EXPECT_EQ(one.row(777), row);
    EXPECT_EQ(again.row(777), row);
    EXPECT_NE(other.row(777), row);
    std::set<std::vector<float>> distinct;
    for (size_t i = 100; i < 600; i++) distinct.insert(one.row(i));
    EXPECT_GT(distinct.size(), 490u);
}

TEST(Generator, NewRowsLieBetweenNearRows) {
    const Vectors base = two_groups(400, 8);
    const Generator generator(base, true, 1);
    for (size_t i = 400; i < 2400; i++) {
        const std::vector<float> row = generator.row(i);
        const bool low = row[0] < 100;
        for (size_t d = 0; d + 1 < row.size(); d++) {
            EXPECT_EQ(row[d], std::nearbyint(row[d]));
            EXPECT_GE(row[d], low ? 9 : 199);
            EXPECT_LE(row[d], low ? 19 : 209);
        }
        EXPECT_EQ(row.back(), 0) << "zero in all rows";
    }
}

TEST(Generator, MakesRowsOfOneRow) {
    const Vectors base{1, 2, {5, 7}};
    const std::vector<float> row = Generator(base, false, 1).row(1);
    EXPECT_NEAR(row[0], 5, 1);
    EXPECT_NEAR(row[1], 7, 1);
}

TEST(QuantisationStep, IsTheGridOfTheValues) {
    EXPECT_EQ(quantisation_step({1, 3, {1, 2, 3}}, true), 1);
    EXPECT_EQ(quantisation_step({1, 3, {1, 2, -4}}, false), 1);
    EXPECT_EQ(quantisation_step({1, 3, {0.5, 3.0 / 512, -1}}, false), 1.0 / 512);
    EXPECT_NEAR(quantisation_step({1, 2, {0.1f, -0.1f}}, false), 0.1 / 256, 1e-6);
}

TEST(Shuffled, IsAPermutationThatNeverChanges) {
    const std::vector<size_t> order = shuffled(1000, 1);
    EXPECT_EQ(std::set<size_t>(order.begin(), order.end()).size(), 1000u);
    EXPECT_EQ(shuffled(8, 1), (std::vector<size_t>{0, 1, 2, 7, 3, 4, 5, 6}));
    EXPECT_NE(shuffled(1000, 2), order);
}

}  // namespace
}  // namespace pgwarp::bench
