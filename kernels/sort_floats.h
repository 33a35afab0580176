// Sorts floats by SIMD.
#pragma once

#include "kernels/common.h"

#include <cstddef>

namespace pgwarp {

// Ascending. None is NaN or infinity (-infinity may be among them): Highway fills up with the
// largest number.
void sort_floats(float* values, size_t count);

}  // namespace pgwarp
