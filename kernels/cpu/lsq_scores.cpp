#include "kernels/cpu/lsq_scores.h"

#include "kernels/quantizer.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/lsq_scores.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace pgwarp {
namespace HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;

// Four vectors of sums stay in registers over all terms. A vector has at most 64 numbers, so that
// four of them hold at most 256.
using Tag = hn::CappedTag<uint16_t, 64>;
using Numbers = hn::Vec<Tag>;

HWY_INLINE void keep_less(const Numbers sums, const Numbers at, Numbers& least, Numbers& index) {
    const auto less = hn::Lt(sums, least);
    least = hn::Min(sums, least);
    index = hn::IfThenElse(less, at, index);
}

uint8_t Argmin(const uint16_t* const* HWY_RESTRICT terms, uint32_t count) {
    const Tag d;
    const size_t lanes = hn::Lanes(d);
    const auto step = hn::Set(d, static_cast<uint16_t>(lanes));
    auto least = hn::Set(d, 0xffff);
    auto index = hn::Set(d, 255);
    auto at = hn::Iota(d, 0);
    for (size_t c = 0; c < codewords; c += 4 * lanes) {
        const uint16_t* first = terms[0] + c;
        Numbers sum0 = hn::LoadU(d, first);
        Numbers sum1 = hn::LoadU(d, first + lanes);
        Numbers sum2 = hn::LoadU(d, first + 2 * lanes);
        Numbers sum3 = hn::LoadU(d, first + 3 * lanes);
        for (uint32_t t = 1; t < count; ++t) {
            const uint16_t* HWY_RESTRICT term = terms[t] + c;
            sum0 = hn::Add(sum0, hn::LoadU(d, term));
            sum1 = hn::Add(sum1, hn::LoadU(d, term + lanes));
            sum2 = hn::Add(sum2, hn::LoadU(d, term + 2 * lanes));
            sum3 = hn::Add(sum3, hn::LoadU(d, term + 3 * lanes));
        }
        keep_less(sum0, at, least, index);
        at = hn::Add(at, step);
        keep_less(sum1, at, least, index);
        at = hn::Add(at, step);
        keep_less(sum2, at, least, index);
        at = hn::Add(at, step);
        keep_less(sum3, at, least, index);
        at = hn::Add(at, step);
    }
    const auto smallest = hn::Eq(least, hn::MinOfLanes(d, least));
    const auto lowest = hn::IfThenElse(smallest, index, hn::Set(d, 255));
    return static_cast<uint8_t>(hn::GetLane(hn::MinOfLanes(d, lowest)));
}

}  // namespace

uint8_t ArgminOfSums(const uint16_t* const* terms, uint32_t count) {
    return Argmin(terms, count);
}

}  // namespace HWY_NAMESPACE
}  // namespace pgwarp
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace pgwarp {

HWY_EXPORT(ArgminOfSums);

uint8_t argmin_of_sums(const uint16_t* const* terms, uint32_t count) {
    return HWY_DYNAMIC_DISPATCH(ArgminOfSums)(terms, count);
}

}  // namespace pgwarp
#endif
