// Which lists a query takes (kernels/list_plan.h).
#include <cmath>
#include <random>

#include <gtest/gtest.h>

#include "kernels/list_plan.h"
#include "test/kernels/seed.h"

namespace pgwarp {
namespace {

TEST(ListPlanTest, ScoresHaveNoUnit) {
    // Squared distances of a list, the nearest one and the radius.
    EXPECT_FLOAT_EQ(list_score(1, 1, 1, 7), 7);
    EXPECT_FLOAT_EQ(list_score(2, 1, 1, 1), 64);
    EXPECT_FLOAT_EQ(list_score(2000, 1000, 1000, 1), 64);
    // At a centroid, the radius says more than the nearest list.
    EXPECT_FLOAT_EQ(list_score(1, 0, 1, 1), 4);
    EXPECT_EQ(list_score(1, 1, 0, 1), INFINITY);
    EXPECT_EQ(list_score(0, 0, 0, 1), 0);
}

TEST(ListPlanTest, QueriesUnlikeRowsGoFurther) {
    ListPlan plan;
    plan.threshold = 100;
    const ListWave near = ListWave::after(plan, 10, 10, 1);
    EXPECT_TRUE(near.takes(plan, 1, 1, 100));
    EXPECT_FALSE(near.takes(plan, 1, 1, 101));
    // A greater radius than that of nearly all rows.
    plan.outside.radius = 2;
    plan.outside.threshold = 400;
    const ListWave outside = ListWave::after(plan, 10, 10, 3);
    EXPECT_FALSE(near.takes(plan, 1, 1, 101));
    EXPECT_TRUE(outside.takes(plan, 3, 3, 399));
    EXPECT_FALSE(outside.takes(plan, 3, 3, 401));
    // One that needs less than rows do is not held back.
    plan.outside.threshold = 50;
    EXPECT_TRUE(outside.takes(plan, 3, 3, 99));
    // No greater radius, but the nearest list is as far as that.
    plan.outside = {};
    plan.outside.share_of_radius = 0.9f;
    plan.outside.threshold = 400;
    EXPECT_FALSE(near.takes(plan, 1, 0.8f, 200));
    EXPECT_TRUE(near.takes(plan, 1, 1, 399));
    EXPECT_FALSE(near.takes(plan, 1, 1, 401));
    // The nearest list is four times as far, and distances are squared: twice the threshold.
    plan.outside = {};
    plan.outside.nearest = 1;
    EXPECT_FALSE(near.takes(plan, 1, 1, 101));
    const ListWave far = ListWave::after(plan, 10, 10, 4);
    EXPECT_TRUE(far.takes(plan, 4, 4, 199));
    EXPECT_FALSE(far.takes(plan, 4, 4, 201));
    // With the shift of inner products.
    plan.shift = 3;
    EXPECT_TRUE(ListWave::after(plan, 10, 10, 1).takes(plan, 1, 1, 199));
    EXPECT_FALSE(ListWave::after(plan, 10, 10, 1).takes(plan, 1, 1, 201));
}

struct OneDistance {
    double kth;
    double distance_of(size_t) const { return kth; }
};

TEST(ListPlanTest, RadiusIsRenewedInWaves) {
    EXPECT_EQ(wave_end(0), 1u);
    EXPECT_EQ(wave_end(1), 4u);
    EXPECT_EQ(wave_end(3), 4u);
    EXPECT_EQ(wave_end(4), 16u);
    EXPECT_EQ(wave_end(63), 64u);
    // With a radius of 1 the score of a list at distance 1 is that of its entries, 10 a list.
    ListPlan plan;
    plan.threshold = 1000;
    plan.k = 5;
    ListWalk walk(plan);
    OneDistance found{std::numeric_limits<double>::infinity()};
    const auto takes = [&] { return walk.takes(1, 10 * walk.taken(), 10 * walk.taken(), found); };
    // Fewer than k entries: every list is taken.
    for (int i = 0; i < 4; ++i) ASSERT_TRUE(takes());
    found.kth = 1;
    ASSERT_TRUE(takes());  // after 4 lists: the radius is 1
    found.kth = 0.1;       // which counts from 16 lists on
    while (walk.taken() < 16) ASSERT_TRUE(takes()) << walk.taken();
    EXPECT_FALSE(takes());
    EXPECT_EQ(walk.taken(), 16u);
}

TEST(ListPlanTest, CountsEntriesThatPass) {
    ListPlan plan;
    plan.threshold = 1000;
    plan.k = 5;
    const auto taken = [&](double share) {
        ListWalk walk(plan);
        OneDistance found{1};
        while (walk.taken() < 100000 &&
               walk.takes(1, 10 * walk.taken(), share * 10 * walk.taken(), found)) {
        }
        return walk.taken();
    };
    EXPECT_EQ(taken(1), 101u);
    EXPECT_EQ(taken(0.1), 1001u);
}

TEST(ListPlanTest, GoesOnFromWhatOtherPartsHave) {
    ListPlan plan;
    plan.threshold = 1000;
    plan.k = 5;
    plan.nearest = 1;
    plan.radius = 1;
    plan.entries = 900;
    ListWalk walk(plan);
    OneDistance found{std::numeric_limits<double>::infinity()};
    uint32_t taken = 0;
    while (walk.takes(1, 10 * taken, 10 * taken, found)) ++taken;
    EXPECT_EQ(taken, 11u);
    ListWalk far(plan);
    EXPECT_FALSE(far.takes(4, 0, 0, found)) << "not even the first list of a part that is far";
}

}  // namespace
}  // namespace pgwarp
