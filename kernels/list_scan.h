// Scans inverted lists for one query: one table for the query, then m look-ups for each entry.
#pragma once

#include "kernels/bfloat16.h"
#include "kernels/common.h"
#include "kernels/quantizer.h"

namespace pgwarp {

// Adds codebook rows to one sub-quantizer's part of a table: table[c] += factors[r] * rows[r][c], c
// < 256. Takes a few rows at a time because an index holds them on pages.
void add_codebook_rows(const float* factors, const float* rows, uint32_t count, float* table);
void add_codebook_rows(const float* factors, const bfloat16* rows, uint32_t count, float* table);

// The whole table (m)(256) of a query.
void build_table(const Quantizer& quantizer, const float* query, float* table);

// Some entries of one list. Codes are in columns: byte l of row j is sub-quantizer j of entry l.
struct CodeColumns {
    const uint8_t* codes;  // row j at codes + j * stride; up to 7 bytes behind a row may be read
    uint32_t stride;
    uint32_t count;
    const float* offsets;  // (count)
    // Codes to prefetch, (m)(stride) like these, with their offsets behind; or null. Never
    // dereferenced, so the pointer may be stale.
    const uint8_t* next = nullptr;
};

// distances[l] = list_term + offset + sum_j table[j][code], summed in the order of j, so that an
// entry's distance does not depend on its position. `distances` has room for count rounded up to 8.
void scan_codes(const float* table, uint32_t m, const CodeColumns& columns, float list_term,
                float* distances);

// The same for one entry.
inline float code_distance(const float* table, uint32_t m, const CodeColumns& columns,
                           float list_term, uint32_t entry) {
    float sum = list_term + columns.offsets[entry];
    const uint8_t* code = columns.codes + entry;
    for (uint32_t j = 0; j < m; ++j, code += columns.stride, table += codewords)
        sum += table[*code];
    return sum;
}

}  // namespace pgwarp
