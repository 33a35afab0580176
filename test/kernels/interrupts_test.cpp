#include "kernels/interrupts.h"

#include <gtest/gtest.h>

namespace pgwarp {
namespace {

TEST(Interrupts, WithoutFlagsNoneIsPending) {
    EXPECT_FALSE(Interrupts().pending());
    EXPECT_FALSE(Interrupts(nullptr).pending());
    EXPECT_NO_THROW(Interrupts().check());
}

TEST(Interrupts, EitherFlagIsPending) {
    volatile std::sig_atomic_t one = 0, other = 0;
    const Interrupts interrupts(&one, &other);
    const Interrupts copy = interrupts;
    EXPECT_FALSE(interrupts.pending());
    one = 1;
    EXPECT_TRUE(interrupts.pending());
    EXPECT_THROW(copy.check(), Interrupted);
    one = 0;
    other = 1;
    EXPECT_TRUE(copy.pending());
    EXPECT_THROW(interrupts.check(), Interrupted);
    other = 0;
    EXPECT_NO_THROW(interrupts.check());
}

TEST(Interrupts, SecondFlagAlone) {
    volatile std::sig_atomic_t raised = 1;
    EXPECT_TRUE(Interrupts(nullptr, &raised).pending());
}

}  // namespace
}  // namespace pgwarp
