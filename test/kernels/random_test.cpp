#include "kernels/random.h"

#include <cmath>
#include <vector>

#include <gtest/gtest.h>
#include "test/kernels/seed.h"

namespace pgwarp {
namespace {

// An index built from a seed must come out the same on every machine and in every version.
TEST(Random, IsSplitmix64) {
    Random random(1234567);
    EXPECT_EQ(random.next(), 6457827717110365317ULL);
    EXPECT_EQ(random.next(), 3203168211198807973ULL);
    EXPECT_EQ(random.next(), 9817491932198370423ULL);
}

TEST(Random, BelowStaysBelow) {
    Random random(test_seed());
    for (const uint64_t bound :
         {uint64_t{1}, uint64_t{2}, uint64_t{3}, uint64_t{255}, uint64_t{256}, uint64_t{1000003},
          uint64_t{1} << 32, (uint64_t{1} << 63) + 1, ~uint64_t{0}})
        for (int i = 0; i < 1000; ++i) ASSERT_LT(random.below(bound), bound);
}

TEST(Random, BelowIsRoughlyUniform) {
    Random random(test_seed());
    for (const size_t bound : {2, 3, 7, 100}) {
        constexpr size_t draws = 100000;
        std::vector<size_t> seen(bound);
        for (size_t i = 0; i < draws; ++i) ++seen[random.below(bound)];
        const double expected = static_cast<double>(draws) / static_cast<double>(bound);
        // Six standard deviations: once in a billion.
        for (size_t value = 0; value < bound; ++value)
            EXPECT_NEAR(static_cast<double>(seen[value]), expected, 6 * std::sqrt(expected))
                << value << " of " << bound;
    }
}

TEST(Random, UniformFillsZeroToOne) {
    Random random(test_seed());
    constexpr int draws = 100000;
    double sum = 0;
    for (int i = 0; i < draws; ++i) {
        const double value = random.uniform();
        ASSERT_GE(value, 0);
        ASSERT_LT(value, 1);
        sum += value;
    }
    EXPECT_NEAR(sum / draws, 0.5, 6 * std::sqrt(1.0 / 12 / draws));
}

}  // namespace
}  // namespace pgwarp
