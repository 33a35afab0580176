#pragma once

#include "kernels/common.h"
#include "kernels/quantizer.h"

namespace pgwarp {

// For the trial of a rotation against none: so many rows, so many steps of the codebook.
inline constexpr size_t rotation_trial_rows = 8192;
inline constexpr int rotation_trial_steps = 4;

// Directions, (from)(from), with their variances, the weakest first: each, the strongest first, is
// given to the sub-quantizer with room whose product of variances is the smallest so far.
void spread_directions(const QuantizerShape& shape, uint32_t from, const float* directions,
                       const float* values, float* matrix);

}  // namespace pgwarp
