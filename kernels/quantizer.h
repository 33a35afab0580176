// The trained model of an index: coarse centroids, and a product quantizer of residuals.
//
// A vector x belongs to the list of its nearest centroid c (by L2, for every metric). Its residual
// r = x - c is cut into m pieces, each replaced by the nearest of 256 codewords: m bytes. With r'
// the decoded residual,
//     |q - x|^2  is taken as  |q - c|^2  +  sum_j -2 <q_j, codeword_j>  +  (|r'|^2 + 2 <c, r'>)
//     -<q, x>    is taken as  -<q, c>    +  sum_j   -<q_j, codeword_j>
// The first term is the list's, the last is kept with the entry (`offset`), and the sums come from
// one table a query, whatever the list. Cosine is L2 between normalised vectors.
//
// Sub-quantizers of four bits have 16 codewords, and two of them share a byte. Such a byte is also
// one of 256 codewords, all pairs. The codebook holds all pairs, so code that handles bytes needs
// no case for four bits; code that does handle them can be faster (nibble_scan.h).
//
// The codewords of an additive quantizer (LSQ, see lsq.h) have all dimensions, and a residual is
// the sum of one codeword from each of m codebooks. The formulas above hold with q for q_j; only
// making the table and finding codes differ.
//
// All of this may happen in a rotated space (OPQ): distances and products do not change when one
// matrix rotates vectors, queries and centroids, but the error of the codes does.
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
    uint32_t bits = 8;           // of a sub-quantizer: 8, or 4 with two in a byte
    uint32_t search_rounds = 0;  // of the search for additive codes; 0: a product quantizer
    bool additive() const { return search_rounds > 0; }

    // Rows of the codebook. Byte j has the rows [piece_begin(j), piece_begin(j + 1)), one for each
    // dimension it covers. Where m does not divide dims, pieces of a product quantizer differ by at
    // most one dimension.
    uint32_t codebook_rows() const { return additive() ? m * dims : dims; }
    uint32_t piece_begin(uint32_t j) const {
        return static_cast<uint32_t>(static_cast<uint64_t>(j) * codebook_rows() / m);
    }
    // The dimension that a codebook row belongs to.
    uint32_t dim_of_row(uint32_t row) const { return additive() ? row % dims : row; }

    // The same for sub-quantizers; with four bits a byte has two. The low half of a byte comes
    // first, and its two halves together cover the dimensions of the byte.
    uint32_t parts() const { return m * (8 / bits); }
    uint32_t part_begin(uint32_t p) const {
        return static_cast<uint32_t>(static_cast<uint64_t>(p) * codebook_rows() / parts());
    }
};

// A linear map with orthonormal rows, from the table's vectors to the space of the codes.
struct Rotation {
    uint32_t from = 0;              // dimensions of the table's vectors
    uint32_t to = 0;                // of the quantizer's, at most as many
    const float* matrix = nullptr;  // (to)(from); null: no rotation
};

// Many lists have parents: a vector is compared with these first, and then with the centroids of
// the lists of the nearest ones (list_levels.h). Borrows its memory.
struct Parents {
    uint32_t count = 0;                // 0: vectors are compared with the centroids of all lists
    const float* centroids = nullptr;  // (count)(dims)
    // (count + 1): the lists of parent p are first[p] to first[p + 1] - 1, at least one. Together
    // they are all lists.
    const uint32_t* first = nullptr;
};

// Borrows its memory.
struct Quantizer {
    QuantizerShape shape;
    const float* centroids;  // (lists)(dims)
    const float* codebook;   // (codebook_rows)(256): a row is one dimension of a byte's codewords
    Rotation rotation = {};  // for vectors of the table; the other members are in the rotated space
    Parents parents = {};

    // Dimensions of the table's vectors.
    uint32_t table_dims() const { return rotation.matrix ? rotation.from : shape.dims; }
};

}  // namespace pgwarp
