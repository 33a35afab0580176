// Inner products of float32 vectors on tensor cores, at the accuracy of float32.
//
// A number times a power of two is cut into two halves, x = h + l, each with 11 bits: together 22,
// the missing two weigh 2^-22 of the number. <x, y> is then <hx, hy> + <hx, ly> + <lx, hy>, the
// sums kept in float32, and what is left out, <lx, ly>, weighs 2^-22 |x||y|. One power of two
// serves all rows of a matrix, and a half holds nothing below 2^-39 of the largest number of these:
// that is off as well, see product_error(). Written side by side
//     left  [hx hx lx]   right [hy ly hy]
// this is one matrix product of half precision and three times the length, which tensor cores do
// several times as fast as the plain one is done elsewhere.
#pragma once

#include "kernels/cuda/products/float_matrix.h"
#include "kernels/common/both_sides.h"
#include "kernels/cuda/products/split_width.h"
#include "kernels/cuda/base/stream.h"

#include <cmath>
#include <cuda_fp16.h>

namespace pgwarp::gpu {

// A place in the midst of the rows, (dims): of each dimension the median of some of them, which one
// row far away does not move as it would their mean. Distances are the same from there, and what is
// off in the products is off by a share of much smaller norms.
void find_origin(const FloatMatrix& matrix, float* origin, cudaStream_t stream);

// The bits of the largest magnitude in the matrix, into *largest.
void find_largest(const FloatMatrix& matrix, uint32_t* largest, cudaStream_t stream);

enum class Side { left, right };

// Writes (count)(split_width) halves, and on the right zeros behind them: (padded_rows(count)).
// `scale`, one uint32_t on the device, is overwritten and belongs to them. `norms`, where not null:
// the squared norm of each row, (count).
void split_rows(const FloatMatrix& matrix, Side side, __half* halves, uint32_t* scale, float* norms,
                cudaStream_t stream);

struct SplitMatrix {
    const __half* halves;
    const uint32_t* scale;
    size_t count;
};

// How far a product may be off: of vectors of these lengths, from matrices with these largest
// numbers. The sums of a tensor core are off by a unit of the last place a step, some up and some
// down.
PGWARP_BOTH float product_error(float left, float right, float largest_left, float largest_right,
                                uint32_t dims) {
    const float root = sqrtf(static_cast<float>(dims));
    return 0x1p-23f * (6 + root) * left * right +
           0x1p-39f * root * (largest_left * right + largest_right * left);
}

// For a tool that looks for reads of memory that nobody has written, and does not see what cuBLAS
// writes: products are cleared before.
inline bool clear_products_first = false;
// For one that breaks down in cuBLAS: a kernel of our own, which takes its time.
inline bool multiply_ourselves = false;

// products[i * stride + j] = factor * <left i, right j>, and zeros up to padded_rows(right.count),
// which the stride has room for. `scratch`: two floats on the device.
void multiply(const Blas& blas, cudaStream_t stream, const SplitMatrix& left,
              const SplitMatrix& right, uint32_t dims, float factor, float* products, size_t stride,
              float* scratch);

// A plain product of float32 matrices by columns, c = op(a) op(b): (rows)(columns), over `inner`.
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
