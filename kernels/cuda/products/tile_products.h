// Products of short vectors on tensor cores by our own kernel. To find only the nearest, it writes
// no products to memory. It also avoids loading cuBLAS, which takes a tenth of a second.
//
// Numbers are split as in products.h, but high and low halves are stored once, and the kernel
// computes all three products from them.
#pragma once

#include "kernels/cuda/base/context.h"
#include "kernels/cuda/products/products.h"

namespace pgwarp::gpu {

// Whether vectors are short enough: shared memory holds whole rows of a block's tile.
bool fits_tiles(const Context& context, uint32_t dims);

inline uint32_t pair_dims(uint32_t dims) {
    return (dims + 15) / 16 * 16;
}
// Rows, padded to whole tiles.
inline size_t pair_rows(size_t rows) {
    return (rows + 127) / 128 * 128;
}

// A range of split rows. Kernels read whole tiles from its first row on.
struct PairView {
    const __half* halves;  // (count)(high, low)(pair_dims)
    const float* scales;   // (count): the power of two that multiplied the row
    const float* norms;    // (count): squared
    size_t count;
    uint32_t dims;
};

// common: one power of two for all rows; own: one per row.
enum class Scales { common, own };

// Split rows and their memory. Padding rows up to pair_rows(count) are zeros with infinite norms.
class PairMatrix {
  public:
    PairMatrix() = default;
    void grow(DeviceMemory& memory, size_t rows, uint32_t dims);
    // grow() has made room for matrix.count rows.
    void split(const FloatMatrix& matrix, Scales scales, cudaStream_t stream);
    // `count` rows, whole tiles, with these numbers, on the device; a number that the matrix does
    // not have makes a padding row. grow() has made room for them.
    void split_some(const FloatMatrix& matrix, const uint32_t* numbers, size_t count, Scales scales,
                    cudaStream_t stream);
    // `count` rows from `first` on, a multiple of pair_rows(1).
    PairView view(size_t first, size_t count) const;
    PairView view() const { return view(0, count_); }

  private:
    Buffer<__half> halves_;
    Buffer<float> scales_, norms_;
    Buffer<uint32_t> largest_;
    size_t count_ = 0;
    uint32_t dims_ = 0;
};

// nearest[i]: the number of the other that is nearest to row i; the lowest of equally near ones.
// The others have a common scale. `keys`: scratch, one per row.
void nearest_by_tiles(const Context& context, const PairView& rows, const PairView& others,
                      uint64_t* keys, uint32_t* nearest, cudaStream_t stream);

// Which tiles of others each tile of rows is compared with. All pointers are to device memory.
struct TileGroups {
    const uint32_t* of_rows;  // (tiles of rows): the group; no_index: the tile is not used. Null:
                              // all rows are compared with all others
    const uint32_t* begin;    // (groups + 1), in `tiles`
    const uint32_t* tiles;    // numbers of tiles of others
};

// Writes the key of each row's nearest other of its group. Padding rows have any.
void nearest_of_groups(const Context& context, const PairView& rows, const PairView& others,
                       const TileGroups& groups, uint64_t* keys, cudaStream_t stream);

// products[i * stride + j] = factor * <row i, other j>. The stride is even. Padding between the
// last other and the next row is overwritten.
void multiply_by_tiles(const Context& context, const PairView& rows, const PairView& others,
                       float factor, float* products, size_t stride, cudaStream_t stream);

}  // namespace pgwarp::gpu
