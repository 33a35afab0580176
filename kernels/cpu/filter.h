#pragma once

#include "kernels/common.h"

namespace pgwarp {

// The first i in [begin, count) whose a[i] + b[i] is not above `limit`, or `count`. NaN is not
// above.
size_t next_at_most(const float* a, const float* b, size_t begin, size_t count, float limit);

}  // namespace pgwarp
