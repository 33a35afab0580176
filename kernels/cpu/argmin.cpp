#include "kernels/cpu/argmin.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/argmin.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace pgwarp {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using FloatTag = hn::ScalableTag<float>;
using IndexTag = hn::RebindToUnsigned<FloatTag>;
using Floats = hn::Vec<FloatTag>;
using Indexes = hn::Vec<IndexTag>;

// Keeps the lower of the two in each lane of (value, index); ties go to the lower index.
HWY_INLINE void KeepLower(Floats other_value, Indexes other_index, Floats& value, Indexes& index) {
    const IndexTag du;
    const auto equal = hn::RebindMask(du, hn::Eq(other_value, value));
    const auto less = hn::RebindMask(du, hn::Lt(other_value, value));
    const auto take = hn::Or(less, hn::And(equal, hn::Lt(other_index, index)));
    index = hn::IfThenElse(take, other_index, index);
    value = hn::Min(other_value, value);
}

// Four independent chains of comparisons, to hide the latency of each.
Nearest ArgminSum(const float* HWY_RESTRICT a, const float* HWY_RESTRICT b, uint32_t count) {
    const FloatTag df;
    const IndexTag du;
    const auto lanes = static_cast<uint32_t>(hn::Lanes(df));

    Nearest best{0, a[0] + b[0]};
    uint32_t i = 0;
    if (count >= 4 * lanes) {
        const auto sum = [&](uint32_t at) HWY_ATTR {
            return hn::Add(hn::LoadU(df, a + at), hn::LoadU(df, b + at));
        };
        const Indexes step = hn::Set(du, lanes);
        Indexes index0 = hn::Iota(du, 0), index1 = hn::Add(index0, step);
        Indexes index2 = hn::Add(index1, step), index3 = hn::Add(index2, step);
        Floats value0 = sum(0), value1 = sum(lanes), value2 = sum(2 * lanes),
               value3 = sum(3 * lanes);
        Indexes at = index3;
        const auto keep = [&](Floats here, Floats& value, Indexes& index) HWY_ATTR {
            at = hn::Add(at, step);
            const auto less = hn::Lt(here, value);
            value = hn::IfThenElse(less, here, value);
            index = hn::IfThenElse(hn::RebindMask(du, less), at, index);
        };
        for (i = 4 * lanes; i + 4 * lanes <= count; i += 4 * lanes) {
            keep(sum(i), value0, index0);
            keep(sum(i + lanes), value1, index1);
            keep(sum(i + 2 * lanes), value2, index2);
            keep(sum(i + 3 * lanes), value3, index3);
        }
        KeepLower(value1, index1, value0, index0);
        KeepLower(value3, index3, value2, index2);
        KeepLower(value2, index2, value0, index0);
        HWY_ALIGN float values[HWY_MAX_BYTES / sizeof(float)];
        HWY_ALIGN uint32_t indexes[HWY_MAX_BYTES / sizeof(float)];
        hn::Store(value0, df, values);
        hn::Store(index0, du, indexes);
        best = {indexes[0], values[0]};
        for (uint32_t l = 1; l < lanes; ++l)
            if (values[l] < best.value || (values[l] == best.value && indexes[l] < best.index))
                best = {indexes[l], values[l]};
    }
    for (; i < count; ++i)
        if (a[i] + b[i] < best.value) best = {i, a[i] + b[i]};
    return best;
}

}  // namespace HWY_NAMESPACE
}  // namespace pgwarp
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace pgwarp {

HWY_EXPORT(ArgminSum);

Nearest argmin_sum(const float* a, const float* b, uint32_t count) {
    return HWY_DYNAMIC_DISPATCH(ArgminSum)(a, b, count);
}

}  // namespace pgwarp
#endif
