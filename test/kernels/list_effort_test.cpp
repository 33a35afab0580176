// Which lists a query takes (kernels/list_effort.h).
#include <cmath>
#include <random>

#include <gtest/gtest.h>

#include "kernels/list_effort.h"
#include "test/kernels/seed.h"

namespace pgwarp {
namespace {

TEST(ListEffortTest, NoListBeyondTheGreatestDistanceIsTaken) {
    std::mt19937_64 random(test_seed());
    std::uniform_real_distribution<double> exponent(-3, 6);
    std::uniform_real_distribution<double> near_one(0.9, 1.1);
    int within = 0;
    int beyond = 0;
    for (int i = 0; i < 200000; ++i) {
        const auto threshold = static_cast<float>(std::pow(10, exponent(random)));
        const auto nearest = static_cast<float>(std::pow(10, exponent(random)));
        const auto radius = static_cast<float>(std::pow(10, exponent(random)));
        const auto entries = static_cast<float>(1 + std::pow(10, exponent(random)));
        const float greatest = greatest_distance(threshold, nearest, radius, entries);
        const auto distance = static_cast<float>(greatest * near_one(random));
        const float score = list_score(distance, nearest, radius, entries);
        if (score <= threshold) {
            ++within;
            ASSERT_LE(distance, greatest) << threshold << ' ' << nearest << ' ' << radius;
        } else {
            ++beyond;
            // No list is put into the order that is much too far.
            ASSERT_GE(distance, greatest * 0.9999f) << threshold << ' ' << nearest << ' ' << radius;
        }
    }
    EXPECT_GT(within, 50000);
    EXPECT_GT(beyond, 50000);
    EXPECT_EQ(greatest_distance(10, 1, 0, 5), 0);
    EXPECT_TRUE(std::isinf(greatest_distance(10, 1, 1, 0)));
}

}  // namespace
}  // namespace pgwarp
