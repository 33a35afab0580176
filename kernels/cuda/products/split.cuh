// Splits numbers into two halves; see products.h.
#pragma once

#include "kernels/cuda/products/float_matrix.h"

#include <cuda_fp16.h>

namespace pgwarp::gpu {

// The power of two that scales the largest magnitude, given by its bits, to 2^14 .. 2^15: numbers
// then use the whole range of a half, down to 2^-38 of the largest.
__device__ __forceinline__ float scale_for(uint32_t largest_bits) {
    const int exponent = static_cast<int>(largest_bits >> 23) - 127;
    const int shift = largest_bits == 0 ? 0 : max(-110, min(110, 14 - exponent));
    return __uint_as_float(static_cast<uint32_t>(127 + shift) << 23);
}

__device__ __forceinline__ float element(const FloatMatrix& matrix, size_t row, uint32_t d) {
    const float x = matrix.rows[row * matrix.stride + d];
    return matrix.origin ? x - __ldg(matrix.origin + d) : x;
}

struct TwoHalves {
    __half high, low;
};
__device__ __forceinline__ TwoHalves split_number(float scaled) {
    const __half high = __float2half_rn(scaled);
    return {high, __float2half_rn(scaled - __half2float(high))};
}

}  // namespace pgwarp::gpu
