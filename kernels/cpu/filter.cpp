#include "kernels/cpu/filter.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/filter.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace pgwarp {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// Four vectors per step: hits are rare, and one test of a mask costs more than four comparisons.
size_t NextAtMost(const float* HWY_RESTRICT a, const float* HWY_RESTRICT b, size_t begin,
                  size_t count, float limit) {
    const hn::ScalableTag<float> df;
    const size_t lanes = hn::Lanes(df);
    const auto most = hn::Set(df, limit);
    const auto above = [&](size_t i) HWY_ATTR {
        return hn::Gt(hn::Add(hn::LoadU(df, a + i), hn::LoadU(df, b + i)), most);
    };
    size_t i = begin;
    for (; i + 4 * lanes <= count; i += 4 * lanes) {
        const auto first = hn::And(above(i), above(i + lanes));
        const auto second = hn::And(above(i + 2 * lanes), above(i + 3 * lanes));
        if (!hn::AllTrue(df, hn::And(first, second))) break;
    }
    while (i < count && a[i] + b[i] > limit) ++i;
    return i;
}

}  // namespace HWY_NAMESPACE
}  // namespace pgwarp
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace pgwarp {

HWY_EXPORT(NextAtMost);

size_t next_at_most(const float* a, const float* b, size_t begin, size_t count, float limit) {
    return HWY_DYNAMIC_DISPATCH(NextAtMost)(a, b, begin, count, limit);
}

}  // namespace pgwarp
#endif
