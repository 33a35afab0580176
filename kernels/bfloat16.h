// The upper 16 bits of a float32: its sign, exponent and seven bits of mantissa. Models on disk use
// it, because reading centroids and codebooks in a scan is memory-bound.
#pragma once

#include "kernels/common.h"

#include <bit>

namespace pgwarp {

enum class bfloat16 : uint16_t {};

inline float to_float(bfloat16 value) {
    return std::bit_cast<float>(static_cast<uint32_t>(value) << 16);
}

inline float to_float(float value) {
    return value;
}

// Rounds to nearest, ties to even. Finite values stay finite.
inline bfloat16 to_bfloat16(float value) {
    const auto bits = std::bit_cast<uint32_t>(value);
    const uint32_t rounded = bits + 0x7fff + ((bits >> 16) & 1);
    constexpr uint32_t exponent = 0x7f800000;
    const bool overflow = (rounded & exponent) == exponent;
    return static_cast<bfloat16>((overflow ? bits : rounded) >> 16);
}

// Rounds floats to their nearest bfloat16 values.
inline void round_to_bfloat16(float* values, size_t count) {
    for (size_t i = 0; i < count; ++i) values[i] = to_float(to_bfloat16(values[i]));
}

}  // namespace pgwarp
