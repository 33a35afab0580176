// Sorting by a 64-bit key, one digit at a time, so that the caller can look around between two.
#pragma once

#include "kernels/common.h"

#include <cstddef>

namespace pgwarp {

struct KeyedRow {
    uint64_t key;
    uint64_t row;
};

inline constexpr int sort_digit_bits = 11;

// Puts `rows` in the order of the digit that begins at bit `shift`, into `sorted`, which is as
// long; rows with the same digit keep their order. False: all have the same digit, and nothing was
// done.
bool sort_by_digit(const KeyedRow* rows, size_t count, int shift, KeyedRow* sorted) noexcept;

}  // namespace pgwarp
