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
#pragma once

#include "kernels/common.h"

#include <vector>

namespace pgwarp {

inline constexpr uint32_t codewords = 256;

struct QuantizerShape {
    uint32_t dims;
    uint32_t lists;
    uint32_t m;  // sub-quantizers: bytes of a code
    Metric metric;

    // Sub-quantizer j covers the dimensions [piece_begin(j), piece_begin(j + 1)): pieces differ by
    // one dimension at most where m does not divide dims.
    uint32_t piece_begin(uint32_t j) const {
        return static_cast<uint32_t>(static_cast<uint64_t>(j) * dims / m);
    }
};

// Borrowed memory.
struct Quantizer {
    QuantizerShape shape;
    const float* centroids;  // (lists)(dims)
    const float* codebook;   // (dims)(256): row d is dimension d of the codewords of its piece
};

}  // namespace pgwarp
