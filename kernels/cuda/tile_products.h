// Products of short vectors on tensor cores by a kernel of our own: rows are split (products.h) as
// they are read, and where only the nearest is wanted, no product goes to memory. Nothing of cuBLAS
// is loaded for it, which takes a tenth of a second.
#pragma once

#include "kernels/cuda/context.h"
#include "kernels/cuda/products.h"

namespace pgwarp::gpu {

// A block's rows lie in shared memory as a whole.
bool fits_tiles(const Context& context, uint32_t dims);

// The others: the two halves of each number apart, (high)(low), each with so many dimensions.
inline uint32_t pair_dims(uint32_t dims) {
    return (dims + 15) / 16 * 16;
}
// And behind them zeros, as many rows as whole tiles have.
inline size_t pair_rows(size_t rows) {
    return (rows + 127) / 128 * 128;
}
struct PairMatrix {
    Buffer<__half> halves;  // (pair_rows(count))(2 * pair_dims)
    Buffer<float> norms;    // (pair_rows(count)): squared, and infinite behind the last
    Buffer<uint32_t> scale;
    size_t count = 0;
    uint32_t dims = 0;

    PairMatrix() = default;
    PairMatrix(DeviceMemory& memory, size_t most_rows, uint32_t dims);
};
// Overwrites what was there; no more rows than there is room for.
void split_pairs(const FloatMatrix& matrix, PairMatrix& pairs, cudaStream_t stream);

// nearest[i]: the number of the other that is nearest to row i, of equals the lowest. `keys` has
// room for a number a row.
void nearest_by_tiles(const Context& context, const FloatMatrix& rows, const PairMatrix& others,
                      uint64_t* keys, uint32_t* nearest, cudaStream_t stream);

// products[i * stride + j] = factor * <row i, other j>; the stride is even, and what lies between
// the last other and the next row is overwritten.
void multiply_by_tiles(const Context& context, const FloatMatrix& rows, const PairMatrix& others,
                       float factor, float* products, size_t stride, cudaStream_t stream);

}  // namespace pgwarp::gpu
