// IEEE 754 binary16, "half": a sign, five bits of exponent, ten bits of mantissa. Elements of the
// type halfvec are stored so. Arithmetic is done in float32, which has every half.
#pragma once

#include "kernels/common.h"

#include <bit>

namespace pgwarp {

enum class float16 : uint16_t {};

inline constexpr float max_float16 = 65504;

inline bool is_finite(float16 value) {
    return (static_cast<uint32_t>(value) & 0x7c00) != 0x7c00;
}
inline bool is_nan(float16 value) {
    return (static_cast<uint32_t>(value) & 0x7fff) > 0x7c00;
}
inline bool is_infinite(float16 value) {
    return (static_cast<uint32_t>(value) & 0x7fff) == 0x7c00;
}
inline bool is_zero(float16 value) {
    return (static_cast<uint32_t>(value) & 0x7fff) == 0;
}

// Exact, for every half.
inline float to_float(float16 value) {
    const auto bits = static_cast<uint32_t>(value);
    const uint32_t sign = (bits & 0x8000) << 16;
    const uint32_t magnitude = (bits & 0x7fff) << 13;
    if (!is_finite(value)) return std::bit_cast<float>(sign | magnitude | 0x7f800000);
    // As bits of a float32, the magnitude is too small by the difference of the exponents' biases.
    // A product moves it, subnormal halves too, and is exact.
    const float moved = std::bit_cast<float>(magnitude) * 0x1p112f;
    return std::bit_cast<float>(sign | std::bit_cast<uint32_t>(moved));
}

// Rounds to nearest, ties to even. What is 65520 or more becomes infinite; a NaN stays one.
inline float16 to_float16(float value) {
    const auto bits = std::bit_cast<uint32_t>(value);
    const uint32_t sign = bits >> 16 & 0x8000;
    const uint32_t magnitude = bits & 0x7fffffff;
    if (magnitude > 0x7f800000) return static_cast<float16>(sign | 0x7e00);
    if (magnitude >= 0x47800000) return static_cast<float16>(sign | 0x7c00);  // 65536
    if (magnitude < 0x38800000) {  // 2⁻¹⁴: subnormal
        // Halves have steps of 2⁻²⁴ here, floats between 0.5 and 1 likewise: the addition rounds.
        const float moved = std::bit_cast<float>(magnitude) + 0.5f;
        return static_cast<float16>(sign | (std::bit_cast<uint32_t>(moved) - 0x3f000000));
    }
    // A carry out of the mantissa raises the exponent, as it should.
    const uint32_t rounded = magnitude + 0xfff + (magnitude >> 13 & 1) - (uint32_t{127 - 15} << 23);
    return static_cast<float16>(sign | rounded >> 13);
}

// Many at once, with the best instruction set of this machine. The halves are finite where they
// become floats, and need no alignment. None of these functions throws or allocates.
void to_floats(const void* halves, size_t count, float* floats) noexcept;
// Rounds as to_float16() does. Returns whether all halves are finite.
bool to_float16s(const float* floats, size_t count, float16* halves) noexcept;

// Selects the instruction set again; for tests only, after restricting Highway's targets.
void choose_float16_target() noexcept;

}  // namespace pgwarp
