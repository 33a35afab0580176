// Sums over rows in float64, for the report of a training.
#pragma once

#include "kernels/common.h"
#include "kernels/quantizer.h"

namespace pgwarp {

// The mean squared distance of rows, (count)(dims), from their mean; 0 without rows.
double variance_of_rows(const float* rows, size_t count, uint32_t dims);

// The mean squared difference of residuals, (count)(dims), from what their codes, (count)(m), stand
// for; 0 without rows.
double error_of_codes(const QuantizerShape& shape, const float* codebook, const float* residuals,
                      size_t count, const uint8_t* codes);

}  // namespace pgwarp
