#include "kernels/cpu/argmin.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/argmin.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace pgwarp {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

Nearest ArgminSum(const float* HWY_RESTRICT a, const float* HWY_RESTRICT b, uint32_t count) {
    const hn::ScalableTag<float> df;
    const hn::RebindToUnsigned<decltype(df)> du;
    const auto lanes = static_cast<uint32_t>(hn::Lanes(df));

    Nearest best{0, a[0] + b[0]};
    uint32_t i = 0;
    if (count >= lanes) {
        auto value = hn::Add(hn::LoadU(df, a), hn::LoadU(df, b));
        auto index = hn::Iota(du, 0);
        auto at = index;
        const auto step = hn::Set(du, lanes);
        for (i = lanes; i + lanes <= count; i += lanes) {
            at = hn::Add(at, step);
            const auto here = hn::Add(hn::LoadU(df, a + i), hn::LoadU(df, b + i));
            const auto less = hn::Lt(here, value);
            value = hn::IfThenElse(less, here, value);
            index = hn::IfThenElse(hn::RebindMask(du, less), at, index);
        }
        HWY_ALIGN float values[HWY_MAX_BYTES / sizeof(float)];
        HWY_ALIGN uint32_t indexes[HWY_MAX_BYTES / sizeof(float)];
        hn::Store(value, df, values);
        hn::Store(index, du, indexes);
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
