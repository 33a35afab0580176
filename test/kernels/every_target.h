// A test that runs once for every instruction set this machine has.
#pragma once

#include "kernels/distance.h"

#include <random>

#include <gtest/gtest.h>
#include "hwy/highway.h"
#include "test/kernels/seed.h"

namespace pgwarp {

class EveryTarget : public testing::TestWithParam<int64_t> {
  protected:
    void SetUp() override {
        hwy::SetSupportedTargetsForTest(GetParam());
        choose_distance_target();
        ASSERT_STREQ(distance_target(), hwy::TargetName(GetParam()));
    }
    void TearDown() override {
        hwy::SetSupportedTargetsForTest(0);
        choose_distance_target();
    }
    std::mt19937 random{test_seed()};
};

#define PGWARP_EVERY_TARGET(suite)                                                   \
    INSTANTIATE_TEST_SUITE_P(Targets, suite,                                         \
                             testing::ValuesIn(hwy::SupportedAndGeneratedTargets()), \
                             [](const auto& target) { return hwy::TargetName(target.param); })

}  // namespace pgwarp
