// How far a vector looks where lists have parents (Parents in quantizer.h). Neither number is on
// disk. bench/notes/levels.md has the measurements.
#pragma once

#include "kernels/common.h"

#include <algorithm>

namespace pgwarp {

// A row that gets a list is compared with the lists of this many nearest parents.
inline constexpr uint32_t assigned_parents = 16;

// For the nearest `wanted` of all lists, a query is compared with at least this many: those of the
// nearest parents.
inline uint64_t lists_to_compare(uint64_t wanted, uint64_t lists) {
    constexpr uint64_t times = 64, least = 1024;
    return std::min(lists, std::max(times * wanted, least));
}

}  // namespace pgwarp
