#include "kernels/sort_keys.h"

namespace pgwarp {

bool sort_by_digit(const KeyedRow* rows, size_t count, int shift, KeyedRow* sorted) noexcept {
    constexpr size_t digits = size_t{1} << sort_digit_bits;
    const auto digit = [shift](const KeyedRow& row) { return row.key >> shift & (digits - 1); };
    size_t places[digits] = {};
    for (size_t i = 0; i < count; ++i) ++places[digit(rows[i])];
    if (count == 0 || places[digit(rows[0])] == count) return false;
    size_t place = 0;
    for (size_t& begin : places) {
        const size_t here = begin;
        begin = place;
        place += here;
    }
    for (size_t i = 0; i < count; ++i) sorted[places[digit(rows[i])]++] = rows[i];
    return true;
}

}  // namespace pgwarp
