// Scanning codes of four bits: two sub-quantizers of sixteen codewords a byte.
//
// A first pass adds up tables of one byte a codeword, which fit into registers, so that one
// instruction looks up sixteen entries or more. The bytes are rounded down, so the sum is a lower
// bound of the distance: what lies beyond the caller's bound by it lies beyond it for certain. The
// others get their distance from the table of floats. So nothing is lost that a scan of all
// distances would have found, and no distance differs.
#pragma once

#include "kernels/common.h"
#include "kernels/list_scan.h"
#include "kernels/nibbles.h"

namespace pgwarp {

// Adds codebook rows to one sub-quantizer's part of a table, c < 16: as add_codebook_rows() does
// for 256.
void add_nibble_rows(const float* factors, const float* rows, uint32_t count, float* table);
void add_nibble_rows(const float* factors, const bfloat16* rows, uint32_t count, float* table);

// A query's tables. The caller owns the memory.
struct NibbleTable {
    uint32_t m;          // bytes of a code
    const float* exact;  // (2m)(16): byte j has its low four bits in row 2j, the others in 2j + 1
    const uint8_t* low;  // (2m)(16): floor((exact - the row's least) / step), or what fits a byte
    float base;          // the sum of the rows' least
    float step;
    float magnitude;  // of sums: what rounding is relative to; infinite: do not trust `low`
};
NibbleTable make_nibble_table(const float* exact, uint32_t m, uint8_t* low);

struct NibbleHit {
    uint32_t entry;
    float
        distance;  // list_term + offset + sum of the look-ups, in an order that is always the same
};

// All entries whose distance is not above `bound`, and perhaps some that are, in order; returns how
// many. `hits` has room for columns.count. Of codes, up to 15 bytes behind a row may be read.
uint32_t scan_nibbles(const NibbleTable& table, const CodeColumns& columns, float list_term,
                      double bound, NibbleHit* hits);

// The table (m)(256) of whole bytes, for scan_codes().
void pair_nibble_table(const float* exact, uint32_t m, float* table);

// Chooses the instruction set again. Only a test has reason to.
void choose_nibble_target();

}  // namespace pgwarp
