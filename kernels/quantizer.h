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
    uint32_t bits = 8;  // of a sub-quantizer: 8, or 4, and then there are two in a byte

    // Byte j covers the dimensions [piece_begin(j), piece_begin(j + 1)): pieces differ by
    // one dimension at most where m does not divide dims.
    uint32_t piece_begin(uint32_t j) const {
        return static_cast<uint32_t>(static_cast<uint64_t>(j) * dims / m);
    }

    // The same for the sub-quantizers of a code of four bits. A byte's low half comes first; its
    // two halves cover what the byte does.
    uint32_t parts() const { return m * (8 / bits); }
    uint32_t part_begin(uint32_t p) const {
        return static_cast<uint32_t>(static_cast<uint64_t>(p) * dims / parts());
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
    const float* codebook;   // (dims)(256): row d is dimension d of the codewords of its piece
    Rotation rotation = {};  // for whoever has vectors of the table: everything here is turned

    // Of the vectors of the table.
    uint32_t table_dims() const { return rotation.matrix ? rotation.from : shape.dims; }
};

}  // namespace pgwarp
