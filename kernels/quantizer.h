// The trained model of an index: coarse centroids, and a product quantizer of what is left when a
// vector's centroid is taken away.
//
// A vector x belongs to the list of its nearest centroid c (by L2, for every metric). Its residual
// r = x - c is cut into m pieces, each replaced by the nearest of 256 codewords: m bytes. With r'
// the decoded residual,
//     |q - x|^2  is taken as  |q - c|^2  +  sum_j -2 <q_j, codeword_j>  +  (|r'|^2 + 2 <c, r'>)
//     -<q, x>    is taken as  -<q, c>    +  sum_j   -<q_j, codeword_j>
// The first term is the list's, the last is kept with the entry (`offset`), and the sums come from
// one table a query, whatever the list. Cosine is L2 between normalised vectors.
//
// Sub-quantizers of four bits have 16 codewords and share a byte by twos. Such a byte is one of 256
// codewords, too: all pairs. The codebook has them all, so that whoever knows bytes needs not know
// of halves; who does can be faster (nibble_scan.h).
//
// The codewords of an additive quantizer (LSQ, see lsq.h) have all dimensions, and a residual is
// the sum of one of each of m codebooks. The formulas above hold as they are, with q for q_j; what
// differs is how the table is made, and how codes are found.
//
// All of this may happen in a rotated space (OPQ): distances and products do not change when
// vectors, queries and centroids are turned by one matrix, but the error of the codes does.
#pragma once

#include "kernels/common.h"

#include <vector>

namespace pgwarp {

inline constexpr uint32_t codewords = 256;

struct QuantizerShape {
    uint32_t dims;
    uint32_t lists;
    uint32_t m;  // bytes of a code
    Metric metric;
    uint32_t bits = 8;           // of a sub-quantizer: 8, or 4, and then there are two in a byte
    uint32_t search_rounds = 0;  // of the search for codes; 0: nothing to search for, codes are
                                 // those of a product quantizer
    bool additive() const { return search_rounds > 0; }

    // Rows of the codebook. Byte j has the rows [piece_begin(j), piece_begin(j + 1)): a row for
    // each dimension it covers. Pieces of a product quantizer differ by one dimension at most where
    // m does not divide dims.
    uint32_t codebook_rows() const { return additive() ? m * dims : dims; }
    uint32_t piece_begin(uint32_t j) const {
        return static_cast<uint32_t>(static_cast<uint64_t>(j) * codebook_rows() / m);
    }
    // The dimension that a row is of.
    uint32_t dim_of_row(uint32_t row) const { return additive() ? row % dims : row; }

    // The same for sub-quantizers, of which a code of four bits has two a byte. A byte's low half
    // comes first; its two halves cover what the byte does.
    uint32_t parts() const { return m * (8 / bits); }
    uint32_t part_begin(uint32_t p) const {
        return static_cast<uint32_t>(static_cast<uint64_t>(p) * codebook_rows() / parts());
    }
};

// A linear map from the table's vectors to those the codes are made of, with orthonormal rows.
struct Rotation {
    uint32_t from = 0;              // dimensions of the table's vectors
    uint32_t to = 0;                // of the quantizer's, at most as many
    const float* matrix = nullptr;  // (to)(from); null: there is none
};

// Borrowed memory.
struct Quantizer {
    QuantizerShape shape;
    const float* centroids;  // (lists)(dims)
    const float* codebook;   // (codebook_rows)(256): a row is one dimension of a byte's codewords
    Rotation rotation = {};  // for whoever has vectors of the table: everything here is turned

    // Of the vectors of the table.
    uint32_t table_dims() const { return rotation.matrix ? rotation.from : shape.dims; }
};

}  // namespace pgwarp
