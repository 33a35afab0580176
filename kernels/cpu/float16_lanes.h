// Lanes of float32 from halves, and back, for files that Highway compiles for every instruction
// set. Include it after hwy/highway.h; it is compiled as often as that is.

#include "kernels/float16.h"

// clang-format off
#if defined(PGWARP_FLOAT16_LANES) == defined(HWY_TARGET_TOGGLE)
#ifdef PGWARP_FLOAT16_LANES
#undef PGWARP_FLOAT16_LANES
#else
#define PGWARP_FLOAT16_LANES
#endif
// clang-format on

// Instruction sets that convert halves: F16C came with AVX2. Highway's code for the others does not
// round.
#undef PGWARP_CONVERTS_FLOAT16
#if HWY_TARGET == HWY_NEON || HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_AVX3 || \
    HWY_TARGET == HWY_AVX3_DL || HWY_TARGET == HWY_AVX3_ZEN4 || HWY_TARGET == HWY_AVX3_SPR
#define PGWARP_CONVERTS_FLOAT16 1
#else
#define PGWARP_CONVERTS_FLOAT16 0
#endif

HWY_BEFORE_NAMESPACE();
namespace pgwarp {
namespace HWY_NAMESPACE {
namespace {

// Finite halves only.
HWY_INLINE hwy::HWY_NAMESPACE::Vec<hwy::HWY_NAMESPACE::ScalableTag<float>> load_float16(
    const void* from) {
    namespace hn = hwy::HWY_NAMESPACE;
    const hn::ScalableTag<float> tag;
#if PGWARP_CONVERTS_FLOAT16
    const hn::Rebind<hwy::float16_t, decltype(tag)> narrow;
    return hn::PromoteTo(tag, hn::LoadU(narrow, static_cast<const hwy::float16_t*>(from)));
#else
    // As to_float() does.
    const hn::RebindToUnsigned<decltype(tag)> wide;
    const hn::Rebind<uint16_t, decltype(tag)> narrow;
    const auto bits = hn::PromoteTo(wide, hn::LoadU(narrow, static_cast<const uint16_t*>(from)));
    const auto sign = hn::ShiftLeft<16>(hn::And(bits, hn::Set(wide, 0x8000u)));
    const auto magnitude = hn::ShiftLeft<13>(hn::And(bits, hn::Set(wide, 0x7fffu)));
    const auto moved = hn::Mul(hn::BitCast(tag, magnitude), hn::Set(tag, 0x1p112f));
    return hn::Or(moved, hn::BitCast(tag, sign));
#endif
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace pgwarp
HWY_AFTER_NAMESPACE();

#endif
