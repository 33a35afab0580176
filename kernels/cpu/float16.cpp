// Conversions between halves and floats in portable SIMD. Highway compiles this file once for every
// instruction set; the last pass adds the choice between them (see distance.cpp).

#include "kernels/float16.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/float16.cpp"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "kernels/cpu/float16_lanes.h"

#ifndef PGWARP_FLOAT16_FUNCTIONS
#define PGWARP_FLOAT16_FUNCTIONS
namespace pgwarp {

struct Float16Functions {
    decltype(&pgwarp::to_floats) to_floats;
    decltype(&pgwarp::to_float16s) to_float16s;
};

}  // namespace pgwarp
#endif

HWY_BEFORE_NAMESPACE();
namespace pgwarp {
namespace HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;

void to_floats(const void* halves, size_t count, float* floats) noexcept {
    const hn::ScalableTag<float> tag;
    const size_t lanes = hn::Lanes(tag);
    const char* from = static_cast<const char*>(halves);
    size_t i = 0;
    for (; i + lanes <= count; i += lanes)
        hn::StoreU(load_float16(from + i * sizeof(float16)), tag, floats + i);
    if (i == count) return;
    if (count >= lanes) {
        // The last lanes overlap those before them.
        i = count - lanes;
        hn::StoreU(load_float16(from + i * sizeof(float16)), tag, floats + i);
        return;
    }
    for (; i < count; i++) {
        float16 half;
        __builtin_memcpy(&half, from + i * sizeof(half), sizeof(half));
        floats[i] = to_float(half);
    }
}

bool to_float16s(const float* floats, size_t count, float16* halves) noexcept {
    bool finite = true;
    size_t i = 0;
#if PGWARP_CONVERTS_FLOAT16
    const hn::ScalableTag<float> tag;
    const hn::Rebind<hwy::float16_t, decltype(tag)> narrow;
    const size_t lanes = hn::Lanes(tag);
    // Floats of 65520 or more round to an infinite half. A NaN is not less, either.
    const auto limit = hn::Set(tag, 65520.0f);
    for (; i + lanes <= count; i += lanes) {
        const auto values = hn::LoadU(tag, floats + i);
        hn::StoreU(hn::DemoteTo(narrow, values), narrow,
                   reinterpret_cast<hwy::float16_t*>(halves + i));
        finite &= hn::AllTrue(tag, hn::Lt(hn::Abs(values), limit));
    }
#endif
    for (; i < count; i++) {
        halves[i] = to_float16(floats[i]);
        finite &= is_finite(halves[i]);
    }
    return finite;
}

}  // namespace

const Float16Functions* float16_functions() {
    static constexpr Float16Functions functions = {
        .to_floats = to_floats,
        .to_float16s = to_float16s,
    };
    return &functions;
}

}  // namespace HWY_NAMESPACE
}  // namespace pgwarp
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace pgwarp {

HWY_EXPORT(float16_functions);

namespace {
const Float16Functions* chosen = HWY_DYNAMIC_DISPATCH(float16_functions)();
}

void choose_float16_target() noexcept {
    chosen = HWY_DYNAMIC_DISPATCH(float16_functions)();
}

void to_floats(const void* halves, size_t count, float* floats) noexcept {
    chosen->to_floats(halves, count, floats);
}

bool to_float16s(const float* floats, size_t count, float16* halves) noexcept {
    return chosen->to_float16s(floats, count, halves);
}

}  // namespace pgwarp
#endif
