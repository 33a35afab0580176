// Inner products of float32 vectors on tensor cores, at the accuracy of float32.
//
// Each number is scaled by a power of two and split into two half-precision numbers, x = h + l,
// with 11 bits each. Together they hold 22 of 24 bits: a relative error of 2^-22. <x, y> is then
// <hx, hy> + <hx, ly> + <lx, hy>, accumulated in float32. The omitted term <lx, ly> is about
// 2^-22 |x||y|. All rows of a matrix share one power of two, and a half holds nothing below 2^-39
// of the largest number of the matrix: product_error() includes that error. With the parts
// concatenated,
//     left  [hx hx lx]   right [hy ly hy]
// this is one half-precision matrix product of three times the length. Tensor cores compute it
// several times as fast as other units compute the float32 product.
#pragma once

#include "kernels/cuda/products/float_matrix.h"
#include "kernels/host_device.h"
#include "kernels/cuda/products/split_width.h"
#include "kernels/cuda/base/blas.h"
#include "kernels/cuda/base/stream.h"

#include <cmath>
#include <cuda_fp16.h>

namespace pgwarp::gpu {

// Finds a point among the rows, (dims): the median of up to 32 sampled rows in each dimension.
// Unlike the mean it is robust against outliers. Distances relative to this origin are unchanged,
// and the error of the products is relative to much smaller norms.
void find_origin(const FloatMatrix& matrix, float* origin, cudaStream_t stream);

// Writes the bits of the largest magnitude in the matrix to *largest.
void find_largest(const FloatMatrix& matrix, uint32_t* largest, cudaStream_t stream);

enum class Side { left, right };

// Writes (count)(split_width) halves; on the right side, zeros up to padded_rows(count) rows
// follow. `scale`, one uint32_t on the device, receives the bits of the largest magnitude, which
// multiply() needs. `norms`, if not null, receives the squared norm of each row, (count).
void split_rows(const FloatMatrix& matrix, Side side, __half* halves, uint32_t* scale, float* norms,
                cudaStream_t stream);

// Most rows of a tile of products in an exact search.
inline constexpr size_t exact_tile_rows = 65536;

struct SplitMatrix {
    const __half* halves;
    const uint32_t* scale;
    size_t count;
};

// Error bound of a product of vectors with norms `left` and `right`, from matrices with these
// largest magnitudes. A tensor core's sum is off by one ulp per step, with either sign: hence the
// square root of dims.
PGWARP_HOST_DEVICE float product_error(float left, float right, float largest_left,
                                       float largest_right, uint32_t dims) {
    const float root = sqrtf(static_cast<float>(dims));
    return 0x1p-23f * (6 + root) * left * right +
           0x1p-39f * root * (largest_left * right + largest_right * left);
}

// For memory checkers that report reads of uninitialized memory and do not see cuBLAS's writes:
// clears the products first.
inline bool clear_products_first = false;
// For memory checkers that fail inside cuBLAS: uses our own, slow kernel.
inline bool multiply_ourselves = false;

// all: as above. first: <hx, hy> alone, in a third of the time.
enum class Terms { all, first };

// products[i * stride + j] = factor * <left i, right j>, and zeros for j from right.count to
// padded_rows(right.count) <= stride. `scratch`: two floats on the device.
void multiply(const Blas& blas, cudaStream_t stream, const SplitMatrix& left,
              const SplitMatrix& right, uint32_t dims, float factor, float* products, size_t stride,
              float* scratch, Terms terms = Terms::all);

// Squared norms of the rows hx, (count). `scale` as split_rows() wrote it.
void half_norms(const SplitMatrix& matrix, uint32_t dims, float* norms, cudaStream_t stream);

// A float32 product of column-major matrices, c = op(a) op(b): c is rows x columns; op(a) has
// `inner` columns.
struct FloatProduct {
    cublasOperation_t a_operation;
    cublasOperation_t b_operation;
    size_t rows;
    size_t columns;
    size_t inner;
    const float* a;
    size_t a_stride;
    const float* b;
    size_t b_stride;
    float* c;
};
void multiply(const Blas& blas, cudaStream_t stream, const FloatProduct& product);

}  // namespace pgwarp::gpu
