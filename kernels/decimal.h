// Reading a float from decimal text, faster than strtof and with its result to the last bit.
//
// Vectors arrive as text of hundreds of numbers, and strtof dominates the cost of reading them.
// Nearly all of the numbers are plain decimals of at most 19 digits and a small exponent. Such a
// number is computed in float64 as digits × 10^exponent with an error below three units in the last
// place. Rounding the float64 to float32 is exact unless it lies so close to the midpoint of two
// floats that the error could have carried it across. Then, and for everything unusual
// (hexadecimal, infinity, nan, a result that overflows or is subnormal), the caller calls strtof.
#pragma once

#include "kernels/common.h"

#include <bit>
#include <cstring>

namespace pgwarp {

inline constexpr int decimal_exponent_limit = 31;

// 10^exponent at [exponent + decimal_exponent_limit], each rounded once by the compiler.
inline constexpr double powers_of_ten[] = {
    1e-31, 1e-30, 1e-29, 1e-28, 1e-27, 1e-26, 1e-25, 1e-24, 1e-23, 1e-22, 1e-21, 1e-20, 1e-19,
    1e-18, 1e-17, 1e-16, 1e-15, 1e-14, 1e-13, 1e-12, 1e-11, 1e-10, 1e-9,  1e-8,  1e-7,  1e-6,
    1e-5,  1e-4,  1e-3,  1e-2,  1e-1,  1e0,   1e1,   1e2,   1e3,   1e4,   1e5,   1e6,   1e7,
    1e8,   1e9,   1e10,  1e11,  1e12,  1e13,  1e14,  1e15,  1e16,  1e17,  1e18,  1e19,  1e20,
    1e21,  1e22,  1e23,  1e24,  1e25,  1e26,  1e27,  1e28,  1e29,  1e30,  1e31};
static_assert(sizeof(powers_of_ten) / sizeof(double) == 2 * decimal_exponent_limit + 1);

namespace decimal_detail {

inline bool is_digit(char c) noexcept {
    return static_cast<unsigned char>(c - '0') < 10;
}

inline const char* read_digits(const char* text, uint64_t* digits) noexcept {
    for (; is_digit(*text); text++) *digits = *digits * 10 + static_cast<uint64_t>(*text - '0');
    return text;
}

// Reads eight digits at once, the first in the lowest byte: joins digits to pairs, pairs to fours,
// then the two halves. Returns false where one of the eight characters is not a digit.
inline bool read_eight_digits(const char* text, uint64_t* digits) noexcept {
    if constexpr (std::endian::native != std::endian::little) return false;
    uint64_t bytes;
    std::memcpy(&bytes, text, sizeof(bytes));
    constexpr uint64_t high_halves = 0xF0F0F0F0F0F0F0F0;
    const uint64_t carried = (bytes + 0x0606060606060606) & high_halves;
    if (((bytes & high_halves) | carried >> 4) != 0x3333333333333333) return false;
    bytes -= 0x3030303030303030;
    bytes = bytes * 10 + (bytes >> 8);
    constexpr uint64_t pairs = 0x000000FF000000FF;
    const uint64_t upper = (bytes & pairs) * (100 + (uint64_t{1000000} << 32));
    const uint64_t lower = (bytes >> 16 & pairs) * (1 + (uint64_t{10000} << 32));
    *digits = *digits * 100000000 + ((upper + lower) >> 32);
    return true;
}

// Counts the digits in [text, end) from the first non-zero on; a decimal point is skipped.
inline ptrdiff_t significant_digits(const char* text, const char* end) noexcept {
    while (text < end && (*text == '0' || *text == '.')) text++;
    ptrdiff_t count = 0;
    for (; text < end; text++) count += *text != '.';
    return count;
}

// Reads the exponent after the 'e' at text. Returns nullptr where strtof would not read an
// exponent, or where it is too large for this fast path.
inline const char* read_exponent(const char* text, int* exponent) noexcept {
    text++;
    const bool negative = *text == '-';
    if (negative || *text == '+') text++;
    uint64_t magnitude = 0;
    const char* end = read_digits(text, &magnitude);
    if (end == text || end - text > 4) return nullptr;
    *exponent += negative ? -static_cast<int>(magnitude) : static_cast<int>(magnitude);
    return end;
}

}  // namespace decimal_detail

// Returns the end of the number, or nullptr where the caller must call strtof: the text may still
// be valid or invalid. The text starts at its sign or first digit. The character at `limit` is
// readable and not a digit (a string's terminating zero), so only look-ahead has to check the
// limit.
inline const char* parse_plain_decimal(const char* text, const char* limit, float* value) noexcept {
    using namespace decimal_detail;
    const bool negative = *text == '-';
    if (negative || *text == '+') text++;

    // Overflows past 19 digits; the count of digits is checked below.
    uint64_t digits = 0;
    const char* end = read_digits(text, &digits);
    ptrdiff_t count = end - text;
    int exponent = 0;
    if (*end == '.') {
        const char* fraction = end + 1;
        end = fraction;
        while (limit - end >= 8 && read_eight_digits(end, &digits)) end += 8;
        end = read_digits(end, &digits);
        count += end - fraction;
        exponent = -static_cast<int>(end - fraction);
    }
    if (count == 0 || count > 1000) return nullptr;
    if (count > 19 && significant_digits(text, end) > 19) return nullptr;
    if ((*end | 0x20) == 'e') {
        end = read_exponent(end, &exponent);
        if (end == nullptr) return nullptr;
    } else if ((*end | 0x20) == 'x') {
        return nullptr;
    }

    if (digits == 0) {
        *value = negative ? -0.0f : 0.0f;
        return end;
    }
    if (exponent < -decimal_exponent_limit || exponent > decimal_exponent_limit) return nullptr;
    const double wide =
        static_cast<double>(digits) * powers_of_ten[exponent + decimal_exponent_limit];
    if (!(wide >= 0x1p-126 && wide <= 0x1.fffffep127)) return nullptr;

    // The 29 mantissa bits that float32 lacks: half of their range is the midpoint of two floats.
    constexpr uint64_t middle = uint64_t{1} << 28;
    const uint64_t lost = std::bit_cast<uint64_t>(wide) & (2 * middle - 1);
    if (lost - (middle - 4) <= 8) return nullptr;

    *value = static_cast<float>(negative ? -wide : wide);
    return end;
}

}  // namespace pgwarp
