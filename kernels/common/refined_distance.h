// The distance that a refinement gives, from the product of its integers: for the CPU and for
// devices, which add up that product and the list term in ways of their own.
//
// The product is one of integers, and so the same everywhere. The list term is a sum of floats. The
// bound of its error holds if at most dims / 4 + 16 roundings follow each other in it
// (relative_rounding()): a CPU adds up four lanes or more at once, a warp 32. The rest is in
// double, where a device may join a product and a sum to one rounding: that is far below the bound,
// which is rounded up to floats.
#pragma once

#include "kernels/host_device.h"
#include "kernels/refinement.h"

#include <cmath>

namespace pgwarp {

// Sums of floats, four lanes or more at once, are off by less than this, relative to the sum of the
// terms' magnitudes.
PGWARP_HOST_DEVICE double relative_rounding(uint32_t dims) {
    return (dims / 4 + 16) * 0x1p-24;
}

// Squares below this are lost in such a sum, and add up to an absolute error.
PGWARP_HOST_DEVICE double lost_squares(uint32_t dims) {
    return dims * 0x1p-148;
}

// Levels of a query's values on either side of zero: no sum of products with codes exceeds 32 bits.
PGWARP_HOST_DEVICE float refinement_levels(uint32_t dims) {
    constexpr float most_code = 128;
    return fminf(32767.0f, floorf(2147483647.0f / most_code / static_cast<float>(dims)));
}
// 0: the scale is too small to divide by.
PGWARP_HOST_DEVICE float inverse_scale(float scale) {
    const float inverse = scale > 0 ? 1 / scale : 0;
    return inverse <= 0x1.fffffep127f ? inverse : 0;
}

// `product`: of the query's values and the codes. The query's values are not read.
PGWARP_HOST_DEVICE RefinedDistance refined_from_product(const RefinementQuery& query,
                                                        float list_term, const RefinementHead& head,
                                                        int32_t product) {
    constexpr float most_finite = 0x1.fffffep127f;
    const double factor = product_factor(query.metric);
    const double lost = lost_squares(query.dims);
    const double code_error = head.error + sqrt(lost);
    const double norm = head.norm + sqrt(lost);
    double distance = list_term + factor * head.scale * query.scale * product;
    double error = fabs(factor) * query.rounding * norm;
    // What all sums above and the exact distance add up, in magnitudes: these are floats.
    double added = 0;
    if (has_norms(query.metric)) {
        distance += head.offset;
        const double to_centroid = sqrt(fabs(static_cast<double>(list_term)));
        const double reach = to_centroid + norm + code_error;  // at least |q - x|
        // |c| is at most |q| + |q - c|.
        added = 3 * reach * reach + 4 * (query.norm + to_centroid) * norm;
        // The exact distance is 1 - <q, x> / (|q| |x|), however near x is.
        if (normalizes(query.metric)) added += 4;
    } else {
        added = 2 * query.norm * (head.offset + norm + code_error);
    }
    error += added * relative_rounding(query.dims) + lost;
    error += has_norms(query.metric) ? 2 * sqrt(fmax(distance + error, 0.0)) * code_error
                                     : query.norm * code_error;
    // The result is rounded to floats.
    const auto rounded = static_cast<float>(distance);
    const auto most = static_cast<float>((error + fabs(distance) * 0x1p-23) * (1 + 0x1p-22));
    if (!(fabsf(rounded) <= most_finite) || !(most <= most_finite))
        return {0, static_cast<float>(INFINITY)};
    return {rounded, most};
}

}  // namespace pgwarp
