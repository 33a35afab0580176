#include "kernels/refinement.h"
#include "kernels/common/refined_distance.h"
#include "kernels/distance.h"

#include <cmath>
#include <limits>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/refinement.cpp"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"

#ifndef PGWARP_REFINEMENT_FUNCTIONS
#define PGWARP_REFINEMENT_FUNCTIONS
namespace pgwarp {

inline constexpr float most_level = 127;

struct RefinementSums {
    float norm;     // |r'|^2
    float product;  // <c, r'>
    float error;    // |e|^2
};

struct RefinementFunctions {
    int32_t (*product)(const int16_t*, const int8_t*, size_t) noexcept;
    float (*greatest)(const float*, const float*, size_t) noexcept;
    RefinementSums (*encode)(const float*, const float*, size_t, float, int8_t*) noexcept;
};

}  // namespace pgwarp
#endif

HWY_BEFORE_NAMESPACE();
namespace pgwarp {
namespace HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;

// The rest of a row that does not fill a vector goes through shorter ones, then one by one: nothing
// behind its end is read, because that may be the end of a page.
template <class Tag>
HWY_INLINE int32_t add_products(Tag tag, const int16_t* HWY_RESTRICT query,
                                const int8_t* HWY_RESTRICT codes, size_t* at, size_t dims) {
    const hn::Rebind<int8_t, Tag> bytes;
    const hn::RepartitionToWide<Tag> wide;
    const size_t lanes = hn::Lanes(tag);
    // Four sums, because an addition has to wait for the one before.
    auto sum0 = hn::Zero(wide);
    auto sum1 = hn::Zero(wide);
    auto sum2 = hn::Zero(wide);
    auto sum3 = hn::Zero(wide);
    size_t i = *at;
    const auto code = [&](size_t from)
                          HWY_ATTR { return hn::PromoteTo(tag, hn::LoadU(bytes, codes + from)); };
    for (; i + 2 * lanes <= dims; i += 2 * lanes) {
        sum0 = hn::ReorderWidenMulAccumulate(wide, hn::LoadU(tag, query + i), code(i), sum0, sum1);
        sum2 = hn::ReorderWidenMulAccumulate(wide, hn::LoadU(tag, query + i + lanes),
                                             code(i + lanes), sum2, sum3);
    }
    for (; i + lanes <= dims; i += lanes)
        sum0 = hn::ReorderWidenMulAccumulate(wide, hn::LoadU(tag, query + i), code(i), sum0, sum1);
    *at = i;
    return hn::GetLane(hn::SumOfLanes(wide, hn::Add(hn::Add(sum0, sum1), hn::Add(sum2, sum3))));
}

int32_t product(const int16_t* query, const int8_t* codes, size_t dims) noexcept {
    size_t i = 0;
    int32_t sum = add_products(hn::ScalableTag<int16_t>(), query, codes, &i, dims);
    if (i + 8 <= dims) sum += add_products(hn::CappedTag<int16_t, 8>(), query, codes, &i, dims);
    for (; i < dims; ++i) sum += int32_t{query[i]} * codes[i];
    return sum;
}

using FloatTag = hn::ScalableTag<float>;

float greatest(const float* row, const float* centroid, size_t dims) noexcept {
    const FloatTag tag;
    const size_t lanes = hn::Lanes(tag);
    auto most = hn::Zero(tag);
    size_t i = 0;
    for (; i + lanes <= dims; i += lanes)
        most = hn::Max(most, hn::AbsDiff(hn::LoadU(tag, row + i), hn::LoadU(tag, centroid + i)));
    float result = hn::GetLane(hn::MaxOfLanes(tag, most));
    for (; i < dims; ++i) {
        const float difference = row[i] < centroid[i] ? centroid[i] - row[i] : row[i] - centroid[i];
        if (difference > result) result = difference;
    }
    return result;
}

RefinementSums encode(const float* row, const float* centroid, size_t dims, float scale,
                      int8_t* codes) noexcept {
    const FloatTag tag;
    const hn::RebindToSigned<FloatTag> whole;
    const hn::Rebind<int8_t, FloatTag> bytes;
    const size_t lanes = hn::Lanes(tag);
    const float levels = 1 / scale;
    auto norm = hn::Zero(tag);
    auto product = hn::Zero(tag);
    auto error = hn::Zero(tag);
    size_t i = 0;
    const auto limit = hn::Set(tag, most_level);
    for (; i + lanes <= dims; i += lanes) {
        const auto c = hn::LoadU(tag, centroid + i);
        const auto residual = hn::Sub(hn::LoadU(tag, row + i), c);
        const auto scaled = hn::Mul(residual, hn::Set(tag, levels));
        const auto rounded = hn::Max(hn::Neg(limit), hn::Min(hn::Round(scaled), limit));
        const auto taken = hn::Mul(rounded, hn::Set(tag, scale));
        const auto off = hn::Sub(residual, taken);
        norm = hn::MulAdd(taken, taken, norm);
        product = hn::MulAdd(c, taken, product);
        error = hn::MulAdd(off, off, error);
        hn::StoreU(hn::DemoteTo(bytes, hn::ConvertTo(whole, rounded)), bytes, codes + i);
    }
    RefinementSums sums{hn::GetLane(hn::SumOfLanes(tag, norm)),
                        hn::GetLane(hn::SumOfLanes(tag, product)),
                        hn::GetLane(hn::SumOfLanes(tag, error))};
    for (; i < dims; ++i) {
        const float residual = row[i] - centroid[i];
        float rounded = __builtin_nearbyintf(residual * levels);
        rounded = rounded < -most_level ? -most_level : rounded > most_level ? most_level : rounded;
        const float taken = rounded * scale;
        const float off = residual - taken;
        sums.norm += taken * taken;
        sums.product += centroid[i] * taken;
        sums.error += off * off;
        codes[i] = static_cast<int8_t>(rounded);
    }
    return sums;
}

}  // namespace

const RefinementFunctions* refinement_functions() {
    static constexpr RefinementFunctions functions = {product, greatest, encode};
    return &functions;
}

}  // namespace HWY_NAMESPACE
}  // namespace pgwarp
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace pgwarp {

HWY_EXPORT(refinement_functions);

namespace {

const RefinementFunctions* chosen = HWY_DYNAMIC_DISPATCH(refinement_functions)();

float norm_of(const float* vector, uint32_t dims) {
    return static_cast<float>(std::sqrt(squared_norm(vector, dims)));
}

}  // namespace

void choose_refinement_target() noexcept {
    chosen = HWY_DYNAMIC_DISPATCH(refinement_functions)();
}

RefinementHead encode_refinement(Metric metric, const float* row, const float* centroid,
                                 uint32_t dims, int8_t* codes) noexcept {
    const float greatest = chosen->greatest(row, centroid, dims);
    const float scale = greatest / most_level;
    if (!(std::isfinite(1 / scale) && std::isfinite(scale))) {
        for (uint32_t i = 0; i < dims; ++i) codes[i] = 0;
        // Too small to divide by, or too large to add up: x may be anywhere.
        const float error = greatest == 0 ? 0 : std::numeric_limits<float>::infinity();
        return {0, has_norms(metric) ? 0 : norm_of(centroid, dims), error, 0};
    }
    const RefinementSums sums = chosen->encode(row, centroid, dims, scale, codes);
    const float offset =
        has_norms(metric) ? sums.norm + 2 * sums.product + sums.error : norm_of(centroid, dims);
    return {scale, offset, std::sqrt(sums.error), std::sqrt(sums.norm)};
}

RefinementQuery make_refinement_query(Metric metric, const float* query, uint32_t dims,
                                      int16_t* values) noexcept {
    float greatest = 0;
    for (uint32_t i = 0; i < dims; ++i) greatest = std::fmax(greatest, std::fabs(query[i]));
    const float scale = greatest / refinement_levels(dims);
    const float inverse = inverse_scale(scale);
    double norm = 0;
    double rounding = 0;
    for (uint32_t i = 0; i < dims; ++i) {
        const float rounded = std::nearbyint(query[i] * inverse);
        values[i] = static_cast<int16_t>(rounded);
        const double off = double{query[i]} - double{scale} * rounded;
        norm += double{query[i]} * query[i];
        rounding += off * off;
    }
    return {metric,
            dims,
            values,
            scale,
            static_cast<float>(std::sqrt(norm)),
            static_cast<float>(std::sqrt(rounding))};
}

RefinedDistance refined_distance(const RefinementQuery& query, float list_term,
                                 const RefinementHead& head, const int8_t* codes) noexcept {
    return refined_from_product(query, list_term, head,
                                chosen->product(query.values, codes, query.dims));
}

RefinedRange refined_range(const RefinedDistance& refined) noexcept {
    constexpr float infinity = std::numeric_limits<float>::infinity();
    return {std::nextafter(refined.distance - refined.error, -infinity),
            std::nextafter(refined.distance + refined.error, infinity)};
}

}  // namespace pgwarp
#endif
