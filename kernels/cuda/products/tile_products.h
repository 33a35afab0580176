// Products of short vectors on tensor cores by a kernel of our own: where only the nearest is
// wanted, no product goes to memory, and nothing of cuBLAS is loaded, which takes a tenth of a
// second.
//
// Numbers are split as in products.h, but the halves lie there once, and the three products are
// made of the same two.
#pragma once

#include "kernels/cuda/base/context.h"
#include "kernels/cuda/products/products.h"

namespace pgwarp::gpu {

// A block's rows lie in shared memory as a whole.
bool fits_tiles(const Context& context, uint32_t dims);

inline uint32_t pair_dims(uint32_t dims) {
    return (dims + 15) / 16 * 16;
}
// Rows of whole tiles.
inline size_t pair_rows(size_t rows) {
    return (rows + 127) / 128 * 128;
}

// Some rows that have been split, with whole tiles to be read from the first of them on.
struct PairView {
    const __half* halves;  // (count)(high, low)(pair_dims)
    const float* scales;   // (count): what their numbers were multiplied with
    const float* norms;    // (count): squared
    size_t count;
    uint32_t dims;
};

// One power of two for all rows, or one for each.
enum class Scales { common, own };

// Rows that are split, and room for them: behind the last, zeros of infinite norms up to
// pair_rows(count).
class PairMatrix {
  public:
    PairMatrix() = default;
    void grow(DeviceMemory& memory, size_t rows, uint32_t dims);
    // There is room for as many.
    void split(const FloatMatrix& matrix, Scales scales, cudaStream_t stream);
    // So many rows from one on, which begins a tile.
    PairView view(size_t first, size_t count) const;
    PairView view() const { return view(0, count_); }

  private:
    Buffer<__half> halves_;
    Buffer<float> scales_, norms_;
    Buffer<uint32_t> largest_;
    size_t count_ = 0;
    uint32_t dims_ = 0;
};

// nearest[i]: the number of the other that is nearest to row i, of equals the lowest. The others
// have a common scale. `keys` has room for a number a row.
void nearest_by_tiles(const Context& context, const PairView& rows, const PairView& others,
                      uint64_t* keys, uint32_t* nearest, cudaStream_t stream);

// products[i * stride + j] = factor * <row i, other j>; the stride is even, and what lies between
// the last other and the next row is overwritten.
void multiply_by_tiles(const Context& context, const PairView& rows, const PairView& others,
                       float factor, float* products, size_t stride, cudaStream_t stream);

}  // namespace pgwarp::gpu
