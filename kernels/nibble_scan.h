// Scans codes of four bits: two sub-quantizers of sixteen codewords in a byte.
//
// A first pass adds up tables of one byte per codeword, which fit into registers, so that one
// instruction looks up sixteen entries or more. The bytes are rounded down, so the sum is a lower
// bound of the distance: an entry whose lower bound exceeds the caller's bound is rejected safely.
// The other entries get their distance from the table of floats. So this scan finds everything that
// a scan of all distances would find, with the same distances.
#pragma once

#include "kernels/common.h"
#include "kernels/list_scan.h"
#include "kernels/nibbles.h"

namespace pgwarp {

// Adds codebook rows to one sub-quantizer's part of a table, c < 16; add_codebook_rows() does it
// for 256.
void add_nibble_rows(const float* factors, const float* rows, uint32_t count, float* table);
void add_nibble_rows(const float* factors, const bfloat16* rows, uint32_t count, float* table);

// A query's tables. The caller owns the memory.
struct NibbleTable {
    uint32_t m;          // bytes of a code
    const float* exact;  // (2m)(16): byte j has its low four bits in row 2j, the others in 2j + 1
    const uint8_t* low;  // (2m)(16): floor((exact - the row's minimum) / step); sums fit 16 bits
    float base;          // the sum of the rows' minima
    float step;
    float magnitude;  // of sums: rounding errors are relative to it; infinite: do not use `low`
};
NibbleTable make_nibble_table(const float* exact, uint32_t m, uint8_t* low);

struct NibbleHit {
    uint32_t entry;
    float distance;  // list_term + offset + sum of the look-ups, always in the same order
};

// Returns in `hits`, in order, all entries whose distance is not above `bound`, and perhaps some
// that are above, and returns their number. `hits` has room for columns.count. May read up to 15
// bytes behind a row of codes.
uint32_t scan_nibbles(const NibbleTable& table, const CodeColumns& columns, float list_term,
                      double bound, NibbleHit* hits);

// The same with the distances of the rounded tables, which differ from the exact ones by at most
// table.m steps, by chance in either direction. Takes no look-ups beside those of the first pass.
// For a caller that orders what it finds by something better. An entry's distance depends neither
// on its position nor on the bound.
uint32_t scan_rounded_nibbles(const NibbleTable& table, const CodeColumns& columns, float list_term,
                              double bound, NibbleHit* hits);

// The table (m)(256) of whole bytes, for scan_codes().
void pair_nibble_table(const float* exact, uint32_t m, float* table);

// Selects the instruction set again; for tests only.
void choose_nibble_target();

}  // namespace pgwarp
