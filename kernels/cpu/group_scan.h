// Scans a list for sixteen queries at once.
//
// A table of floats answers one look-up per load. Byte tables of sixteen queries, interleaved as
// (sub-quantizer)(codeword)(query), answer sixteen. The result is a lower bound of the distance, a
// few steps of the bytes too low; entries whose bound is too large need no exact distance.
#pragma once

#include "kernels/list_scan.h"

namespace pgwarp {

inline constexpr uint32_t group_size = 16;

// Sums of this many bytes fit into sixteen bits.
inline constexpr uint32_t most_group_m = 257;

// A query's table in bytes:
//     base + step * sum_j bytes[j][c_j]  <=  sum_j table[j][c_j]
// up to rounding. The left side is too low by less than a step for each byte below 255. `bytes` is
// (m)(256). `sound` is false where the table is not finite.
struct ByteTable {
    float base;
    float step;
    bool sound;
};
ByteTable make_byte_table(const float* table, uint32_t m, uint8_t* bytes) noexcept;

// (m)(256)(16) from sixteen tables.
void interleave_tables(const uint8_t* const* tables, uint32_t m, uint8_t* interleaved) noexcept;

struct GroupScan {
    const uint8_t* tables;  // interleaved
    uint32_t m;             // at most most_group_m
    CodeColumns columns;
    const float* steps;   // (16)
    const float* bases;   // (16), the list's terms included
    const float* bounds;  // (16)
    uint16_t* sums;       // (count rounded up to 8)(16): of bytes
    uint16_t* passed;     // (count): bit q where base + step * sum + offset <= bound for query q
};
void scan_group(const GroupScan& scan) noexcept;

}  // namespace pgwarp
