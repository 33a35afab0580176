#pragma once

#include "kernels/common.h"

namespace pgwarp {

// One sub-quantizer's codewords against many pieces of residuals.
struct PieceEncoding {
    const float* pieces;  // row i at pieces + i * stride
    size_t stride;        // in floats
    size_t count;
    uint32_t piece_dims;
    const float* codebook;    // (piece_dims)(256)
    const float* half_norms;  // (256): |w|^2 / 2
    uint8_t* codes;           // row i at codes + i * code_stride
    size_t code_stride;
};

// The nearest codeword of each piece; ties go to the lowest number.
void encode_piece(const PieceEncoding& encoding);

// half_norms[c] = |w_c|^2 / 2 for the 256 codewords of (piece_dims)(256).
void half_norms_of(const float* codebook, uint32_t piece_dims, float* half_norms);

}  // namespace pgwarp
