// Scores of the search for codes as 16-bit integers, the same on the CPU and on devices.
//
// The score of word c of codebook k is  u(c) + sum_l p_l(c), all in steps. p_l is an entry of a
// table of products, less the table's minimum. u is the row's own term, less its minimum for that
// codebook. No p_l exceeds its table's range, so a word whose u exceeds the minimum by more than
// all ranges of its codebook together cannot be the best: u is clamped there, and sums stay below
// 2^16.
#pragma once

#include "kernels/common.h"
#include "kernels/host_device.h"

#include <algorithm>
#include <cmath>
#include <vector>

namespace pgwarp {

struct LsqScale {
    float inverse = 0;  // of the step
    float most = 0;     // largest u, in steps: the ranges of a codebook's tables together

    // `lows` and `highs`, (books)(books): minimum and maximum of each table, k != l.
    static LsqScale of(uint32_t books, const float* lows, const float* highs) {
        double widest = 0;
        for (uint32_t k = 0; k < books; ++k) {
            double sum = 0;
            for (uint32_t l = 0; l < books; ++l)
                if (l != k) sum += double{highs[k * books + l]} - lows[k * books + l];
            if (!(sum <= widest)) widest = sum;
        }
        // After an overflow no step can tell words apart.
        if (!std::isfinite(widest)) return {0, 0};
        constexpr double room = 32000;  // of 65536 / 2; rounding adds up to a half for each term
        // With one codebook u alone decides, and its minimum is 0 at any step.
        if (!(widest > 0)) return {1e30f, room};
        return {static_cast<float>(std::min(room / widest, 1e30)), static_cast<float>(room)};
    }
    // A NaN difference counts as `most`.
    PGWARP_HOST_DEVICE static uint16_t steps(float above_least, float inverse, float most) {
        const float steps = above_least * inverse;
        return static_cast<uint16_t>((steps < most ? (steps > 0 ? steps : 0) : most) + 0.5f);
    }
};

}  // namespace pgwarp
