// The halfvec type: its layout, in memory and on disk. Only files of this folder include it.
#pragma once

#include "kernels/float16.h"
#include "extension/types/vector.h"

namespace pgwarp {

// Byte for byte pgvector's halfvec.
struct HalfVector {
    using Element = float16;
    static constexpr const char* type_name = "halfvec";

    int32 vl_len_;  // varlena header: SET_VARSIZE only
    int16 dims;
    int16 unused;  // zero
    float16 x[FLEXIBLE_ARRAY_MEMBER];
};
static_assert(sizeof(HalfVector) == 8 && offsetof(HalfVector, dims) == 4 &&
              offsetof(HalfVector, x) == 8);

// What is 65520 or more rounds to an infinite half.
inline constexpr float halfvec_limit = 65520;

// Sets the elements from floats, rounded. Reports an error where one is beyond the range of halves,
// infinite or NaN.
void set_elements(HalfVector* vector, const float* values);

}  // namespace pgwarp
