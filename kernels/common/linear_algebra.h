// The dense linear algebra of training, with the system's LAPACK. The library is loaded on first
// use: a server that never trains a rotation does not need it, and a BLAS that starts threads does
// so in no other process. Calls are serialised; a call cannot be interrupted.
#pragma once

#include "kernels/common.h"

namespace pgwarp {

// The matrix with orthonormal rows or columns nearest to `matrix`, (rows)(columns): U V^T of the
// singular value decomposition U S V^T. Where singular values are zero, it is one of several.
// Overwrites `matrix`.
void nearest_orthonormal(float* matrix, uint32_t rows, uint32_t columns, float* nearest);

// Replaces a symmetric matrix (size)(size) by its eigenvectors, as rows, by ascending eigenvalue.
void eigenvectors(float* matrix, uint32_t size, float* values);

// Solves matrix x = b for a symmetric positive definite matrix (size)(size), reading its lower
// triangle, and many right-hand sides b, (count)(size); x replaces b. Overwrites the matrix.
void solve_positive(double* matrix, uint32_t size, double* b, uint32_t count);

}  // namespace pgwarp
