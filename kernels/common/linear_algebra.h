// The dense linear algebra of training, by the LAPACK of the system. It is opened when it is first
// needed: a server that never trains a rotation does without, and a BLAS that starts threads does
// so in no other process. One call at a time; a call cannot be interrupted.
#pragma once

#include "kernels/common.h"

namespace pgwarp {

// The matrix with orthonormal rows or columns nearest to `matrix`, (rows)(columns): U V^T where the
// singular value decomposition is U S V^T. Where singular values are zero, one of the nearest.
// `matrix` is used up.
void nearest_orthonormal(float* matrix, uint32_t rows, uint32_t columns, float* nearest);

// Replaces a symmetric matrix (size)(size) by its eigenvectors, one a row, smallest value first.
void eigenvectors(float* matrix, uint32_t size, float* values);

// Solves matrix x = b for a symmetric positive definite matrix (size)(size), of which the lower
// triangle is read, and many b, (count)(size): each is replaced by its x. The matrix is used up.
void solve_positive(double* matrix, uint32_t size, double* b, uint32_t count);

}  // namespace pgwarp
