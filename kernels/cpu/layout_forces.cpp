#include "kernels/cpu/layout_forces.h"

#include <algorithm>

// This file has vectors in structures, which scalable vectors do not allow.
#undef HWY_DISABLED_TARGETS
#define HWY_DISABLED_TARGETS (HWY_SVE | HWY_SVE2 | HWY_SVE_256 | HWY_SVE2_128)
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/layout_forces.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace pgwarp {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using Tag = hn::CappedTag<float, layout_lanes>;
using Floats = hn::Vec<Tag>;

// Products and sums are rounded one by one: with MulAdd() a layout would differ by processor.
HWY_INLINE Floats plus_product(Floats sum, Floats a, Floats b) {
    return hn::Add(sum, hn::Mul(a, b));
}

// x^exponent for x > 0, with a relative error of about 1e-3: a step of the descent needs no more.
HWY_INLINE Floats fast_power(Floats x, Floats exponent) {
    const Tag df;
    const hn::RebindToSigned<Tag> di;
    const auto set = [&](float value) HWY_ATTR { return hn::Set(df, value); };
    const auto bits = hn::BitCast(di, x);
    const Floats m =
        hn::BitCast(df, hn::Or(hn::And(bits, hn::Set(di, 0x7fffff)), hn::Set(di, 0x3f800000)));
    const Floats whole_log = hn::ConvertTo(df, hn::Sub(hn::ShiftRight<23>(bits), hn::Set(di, 127)));
    Floats rest = hn::Sub(set(0.6355111f), hn::Mul(m, set(0.0800109f)));
    rest = plus_product(set(-2.0994023f), m, rest);
    rest = plus_product(set(4.0496169f), m, rest);
    rest = plus_product(set(-2.5056147f), m, rest);
    Floats scaled = plus_product(set(127), hn::Add(whole_log, rest), exponent);
    scaled = hn::Min(hn::Max(scaled, set(1)), set(254));
    const auto whole = hn::ConvertTo(di, scaled);
    const Floats f = hn::Sub(scaled, hn::ConvertTo(df, whole));
    Floats power = plus_product(set(0.2245163f), f, set(0.0790857f));
    power = plus_product(set(0.6963906f), f, power);
    power = plus_product(set(0.9998967f), f, power);
    return hn::Mul(power, hn::BitCast(df, hn::ShiftLeft<23>(whole)));
}

// With p = d^(2b), a pull is -2ab p / (d^2 (1 + a p)) times the difference, a push is
// 2b / ((softening + d^2) (1 + a p)).
struct Forces {
    Floats a, b;

    template <bool is_pull>
    HWY_INLINE void add(Floats x, Floats y, Floats& sum_x, Floats& sum_y) const {
        constexpr float most_step = 4;      // of a coordinate, before the rate
        constexpr float softening = 1e-3f;  // bounds the push between nodes that almost coincide
        const Tag df;
        const Floats square = hn::Max(plus_product(hn::Mul(x, x), y, y), hn::Set(df, 1e-20f));
        const Floats power = fast_power(square, b);
        const Floats above = is_pull ? hn::Mul(hn::Mul(a, b), hn::Mul(hn::Set(df, -2), power))
                                     : hn::Mul(hn::Set(df, 2), b);
        const Floats soft = is_pull ? square : hn::Add(square, hn::Set(df, softening));
        const Floats force = hn::Div(above, hn::Mul(soft, plus_product(hn::Set(df, 1), a, power)));
        const auto bounded = [&](Floats step) HWY_ATTR {
            return hn::Min(hn::Max(step, hn::Set(df, -most_step)), hn::Set(df, most_step));
        };
        sum_x = hn::Add(sum_x, bounded(hn::Mul(force, x)));
        sum_y = hn::Add(sum_y, bounded(hn::Mul(force, y)));
    }
};

void MoveGroup(const LayoutCurve& curve, float rate, PushPool& pool, LayoutGroup& group) {
    const Tag df;
    const hn::RebindToSigned<Tag> di;
    const Forces forces = {hn::Set(df, static_cast<float>(curve.a)),
                           hn::Set(df, static_cast<float>(curve.b))};
    const size_t width = hn::Lanes(df);
    const int32_t most = *std::max_element(group.steps, group.steps + layout_lanes);
    for (int32_t step = 0; step < most; ++step) {
        const size_t drawn = pool.next();
        for (size_t lane = 0; lane < layout_lanes; lane += width) {
            const Floats own_x = hn::LoadU(df, group.points.x + lane);
            const Floats own_y = hn::LoadU(df, group.points.y + lane);
            Floats x = hn::Zero(df), y = hn::Zero(df);
            for (int32_t pull = step; pull < step + 2; ++pull) {
                const LanePoints& other = group.pulls[pull];
                forces.add<true>(hn::Sub(own_x, hn::LoadU(df, other.x + lane)),
                                 hn::Sub(own_y, hn::LoadU(df, other.y + lane)), x, y);
            }
            for (size_t push = 0; push < PushPool::pushes; ++push) {
                const size_t at = drawn + push * layout_lanes + lane;
                forces.add<false>(hn::Sub(own_x, hn::LoadU(df, pool.x() + at)),
                                  hn::Sub(own_y, hn::LoadU(df, pool.y() + at)), x, y);
            }
            const auto moves =
                hn::RebindMask(df, hn::Lt(hn::Set(di, step), hn::LoadU(di, group.steps + lane)));
            const Floats by = hn::IfThenElseZero(moves, hn::Set(df, rate));
            hn::StoreU(plus_product(own_x, by, x), df, group.points.x + lane);
            hn::StoreU(plus_product(own_y, by, y), df, group.points.y + lane);
        }
    }
}

}  // namespace HWY_NAMESPACE
}  // namespace pgwarp
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace pgwarp {

HWY_EXPORT(MoveGroup);

void move_group(const LayoutCurve& curve, float rate, PushPool& pool, LayoutGroup& group) {
    HWY_DYNAMIC_DISPATCH(MoveGroup)(curve, rate, pool, group);
}

}  // namespace pgwarp
#endif
