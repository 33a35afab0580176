#pragma once

#include "kernels/common.h"
#include "kernels/quantizer.h"

namespace pgwarp {

// Size of the trial that compares a rotation with none: rows, and steps of the codebook.
inline constexpr size_t rotation_trial_rows = 8192;
inline constexpr int rotation_trial_steps = 4;

// Distributes directions, (from)(from), sorted by ascending variance, over the sub-quantizers.
// Starting with the strongest, each goes to the sub-quantizer with room whose product of variances
// is the smallest so far.
void spread_directions(const QuantizerShape& shape, uint32_t from, const float* directions,
                       const float* values, float* matrix);

}  // namespace pgwarp
