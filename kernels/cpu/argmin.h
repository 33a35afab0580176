#pragma once

#include "kernels/common.h"

namespace pgwarp {

struct Nearest {
    uint32_t index;
    float value;
};

// The smallest of a[i] + b[i]; ties go to the lowest i. count > 0; no NaN.
Nearest argmin_sum(const float* a, const float* b, uint32_t count);

}  // namespace pgwarp
