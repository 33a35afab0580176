// Scanning inverted lists for one query: a table a query, then a sum of m look-ups an entry.
#pragma once

#include "kernels/bfloat16.h"
#include "kernels/common.h"
#include "kernels/quantizer.h"

namespace pgwarp {

// Adds codebook rows to one sub-quantizer's part of a table: table[c] += factors[r] * rows[r][c],
// c < 256. Rows come in some at a time because in an index they lie on pages.
void add_codebook_rows(const float* factors, const float* rows, uint32_t count, float* table);
void add_codebook_rows(const float* factors, const bfloat16* rows, uint32_t count, float* table);

// -2 <q_j, codeword> for L2 and cosine, -<q_j, codeword> for inner product.
inline float table_factor(Metric metric) {
    return metric == Metric::inner_product ? -1.0f : -2.0f;
}

// The whole table (m)(256) of a query.
void build_table(const Quantizer& quantizer, const float* query, float* table);

// Some entries of one list. Codes are in columns: byte l of row j is sub-quantizer j of entry l.
struct CodeColumns {
    const uint8_t* codes;  // row j at codes + j * stride; up to 7 bytes behind a row may be read
    uint32_t stride;
    uint32_t count;
    const float* offsets;  // (count)
    // Codes that will be asked for next, (m)(stride) like these, with their offsets behind; or
    // null. Who can brings them near meanwhile. Nothing of them is looked at: they may be anything.
    const uint8_t* next = nullptr;
};

// distances[l] = list_term + offset + sum_j table[j][code], summed in the order of j, so that an
// entry has the same distance wherever it lies. `distances` has room for count rounded up to 8.
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
