#include "kernels/bfloat16.h"

#include <bit>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include <gtest/gtest.h>
#include "test/kernels/seed.h"

namespace pgwarp {
namespace {

float rounded(float value) {
    return to_float(to_bfloat16(value));
}

TEST(Bfloat16, EveryValueIsItself) {
    for (uint32_t bits = 0; bits <= 0xffff; ++bits) {
        const auto half = static_cast<bfloat16>(bits);
        if (std::isnan(to_float(half))) continue;
        ASSERT_EQ(to_bfloat16(to_float(half)), half) << bits;
    }
}

// Between two neighbors, to the nearer; in the middle, to the even one.
TEST(Bfloat16, RoundsToTheNearest) {
    std::mt19937 random(test_seed());
    for (int i = 0; i < 100000; ++i) {
        const auto value = std::bit_cast<float>(static_cast<uint32_t>(random()));
        if (!std::isfinite(value)) continue;
        const uint32_t down = std::bit_cast<uint32_t>(value) >> 16;
        const float below = to_float(static_cast<bfloat16>(down));
        const float above = to_float(static_cast<bfloat16>(down + 1));
        const float found = rounded(value);
        if (std::isinf(above)) {
            ASSERT_EQ(found, below);
            continue;
        }
        const double to_below = std::fabs(double{value} - below);
        const double to_above = std::fabs(double{value} - above);
        const bool even_is_below = down % 2 == 0;
        const bool take_below = to_below < to_above || (to_below == to_above && even_is_below);
        ASSERT_EQ(found, take_below ? below : above) << value;
    }
    EXPECT_EQ(rounded(1 + 0x1p-8f), 1);
    EXPECT_EQ(rounded(1 + 0x3p-8f), 1 + 0x4p-8f);
}

TEST(Bfloat16, WhatIsFiniteStaysFinite) {
    constexpr float most = std::numeric_limits<float>::max();
    EXPECT_TRUE(std::isfinite(rounded(most)));
    EXPECT_TRUE(std::isfinite(rounded(-most)));
    EXPECT_EQ(rounded(std::numeric_limits<float>::infinity()),
              std::numeric_limits<float>::infinity());
    EXPECT_TRUE(std::signbit(rounded(-0.0f)));
}

TEST(Bfloat16, RoundsInPlace) {
    std::vector<float> values = {1, 1 + 0x1p-10f, -3.14159f};
    round_to_bfloat16(values.data(), values.size());
    EXPECT_EQ(values, (std::vector<float>{1, 1, rounded(-3.14159f)}));
}

}  // namespace
}  // namespace pgwarp
