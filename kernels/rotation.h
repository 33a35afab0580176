// Rotations before quantization: OPQ, "optimized product quantization".
//
// The residuals X are turned by a matrix R with orthonormal rows so that their codes Y lose least.
// |X - Y R|^2 is minimised by turns: for a fixed R by a step of the codebook, for fixed codes by
// the matrix nearest to Y^T X (Procrustes). R may have fewer rows than columns; what it drops
// counts as error then, and the same two steps still lower the sum.
#pragma once

#include "kernels/common.h"
#include "kernels/quantizer.h"
#include "kernels/workers.h"

namespace pgwarp {

// out, (count)(to), becomes the rows, (count)(from), turned.
void rotate(Workers& workers, const Rotation& rotation, const float* rows, size_t count,
            float* out);

// One row. Neither this nor the next throws.
void rotate_one(const Rotation& rotation, const float* row, float* out) noexcept;

// What a rotation to fewer dimensions has taken from a row's squared norm; 0 where it keeps all.
// With it a squared L2 distance between turned rows lacks only the product of what both have lost:
//     |q - x|^2 = |Rq - Rx|^2 + (|q|^2 - |Rq|^2) + (|x|^2 - |Rx|^2) - 2 <what is lost>
// of which the second is the same for all rows, and the third is kept with the entry.
float dropped_norm(const float* row, uint32_t from, const float* turned, uint32_t to) noexcept;

// Principal directions of rows, (count)(dims), around their mean: the strongest `to` of them, the
// strongest first, as rows of `matrix`, (to)(dims).
void principal_directions(Workers& workers, const float* rows, size_t count, uint32_t dims,
                          uint32_t to, float* matrix);

// The start: principal directions of the residuals, (count)(from), the strongest spread over the
// sub-quantizers so that the products of their variances are alike; or the dimensions as they are,
// where a trial shows that to be better, as with vectors whose neighbouring dimensions belong
// together. shape.dims is the number of rows of `matrix`, (shape.dims)(from).
void rotation_start(Workers& workers, const QuantizerShape& shape, const float* residuals,
                    size_t count, uint32_t from, float* matrix);

// One turn of both steps; returns the mean squared error before it, what the rotation drops
// included. Where it throws, codebook and matrix are as they were.
double rotation_step(Workers& workers, const QuantizerShape& shape, const float* residuals,
                     size_t count, uint32_t from, float* matrix, float* codebook);

}  // namespace pgwarp
