// Rotations before quantization: OPQ, "optimized product quantization".
//
// A matrix R with orthonormal rows rotates the residuals X so that their codes Y lose least.
// Training alternates two steps that minimise |X - Y R|^2: for a fixed R one step of the codebook,
// for fixed codes the matrix nearest to Y^T X (Procrustes). R may have fewer rows than columns; the
// dropped dimensions count as error then, and both steps still lower the sum.
#pragma once

#include "kernels/common.h"
#include "kernels/quantizer.h"
#include "kernels/workers.h"

namespace pgwarp {

// Writes the rotated rows, (count)(from), to out, (count)(to).
void rotate(Workers& workers, const Rotation& rotation, const float* rows, size_t count,
            float* out);

// One row. Neither this function nor the next throws.
void rotate_one(const Rotation& rotation, const float* row, float* out) noexcept;

// What a rotation to fewer dimensions takes from a row's squared norm; 0 where it keeps all
// dimensions. With it, a squared L2 distance between rotated rows lacks only the product of the
// dropped parts:
//     |q - x|^2 = |Rq - Rx|^2 + (|q|^2 - |Rq|^2) + (|x|^2 - |Rx|^2) - 2 <dropped parts>
// The second term is the same for all rows, and the third is stored with the entry.
float dropped_norm(const float* row, uint32_t from, const float* rotated, uint32_t to) noexcept;

// Principal directions of rows, (count)(dims), around their mean: the strongest `to` of them, the
// strongest first, as rows of `matrix`, (to)(dims).
void principal_directions(Workers& workers, const float* rows, size_t count, uint32_t dims,
                          uint32_t to, float* matrix);

// The start: principal directions of the residuals, (count)(from), the strongest distributed over
// the sub-quantizers so that the products of their variances are alike. Where a trial shows it to
// be better, the dimensions are kept as they are, as with vectors whose neighboring dimensions
// belong together. shape.dims is the number of rows of `matrix`, (shape.dims)(from).
void rotation_start(Workers& workers, const QuantizerShape& shape, const float* residuals,
                    size_t count, uint32_t from, float* matrix);

// The start of the codebook that goes with it: residuals drawn with `seed`, rotated.
void rotated_codebook_start(Workers& workers, const QuantizerShape& shape, const Rotation& rotation,
                            const float* residuals, size_t count, uint64_t seed, float* codebook);

// One iteration of both steps; returns the mean squared error before it, including what the
// rotation drops. On a throw codebook and matrix are unchanged.
double rotation_step(Workers& workers, const QuantizerShape& shape, const float* residuals,
                     size_t count, uint32_t from, float* matrix, float* codebook);

}  // namespace pgwarp
