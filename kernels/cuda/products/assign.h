// Finds the nearest centroid of each row. Short vectors are compared tile by tile, without storing
// products (tile_products.h). For longer vectors a matrix product (products.h) is stored, and a
// kernel adds the centroids' norms and takes the minimum of each row.
#pragma once

#include "kernels/cuda/base/context.h"
#include "kernels/cuda/products/products.h"
#include "kernels/cuda/products/tile_products.h"

#include <optional>

namespace pgwarp::gpu {

// The products of one chunk of rows and the buffers to compute them; reused for the next chunk.
struct ProductTile {
    Buffer<__half> halves;
    Buffer<float> row_norms;  // (rows)
    Buffer<float> products;   // (rows)(stride of the centroids)
    Buffer<uint32_t> scale;
    Buffer<float> factors;
    // Used instead for short vectors:
    PairMatrix pairs;  // the rows, measured from the centroids' origin
    Buffer<uint64_t> keys;
};

// The point that is subtracted from all vectors. `centroids`: a point among the centroids, so that
// distances stay accurate when all vectors are far from zero. `zero`: for plain inner products and
// norms.
enum class Origin { zero, centroids };

// Centroids prepared for many chunks of rows: to find the nearest, or to compute all products.
enum class Wanted { nearest, products };
class CentroidMatrix {
  public:
    // `centroids`: (count)(dims) on the device, read in the stream's order.
    CentroidMatrix(const Context& context, cudaStream_t stream, const float* centroids,
                   uint32_t count, uint32_t dims, Origin origin, Wanted wanted);

    // Rows that fit a tile of `bytes` bytes.
    static size_t tile_rows(uint32_t count, uint32_t dims, size_t bytes);

    // nearest[i]: the centroid nearest to row i; the lowest number of equally near ones.
    void find_nearest(const Blas& blas, cudaStream_t stream, const FloatMatrix& rows,
                      ProductTile& tile, uint32_t* nearest) const;

    // Whether find_nearest() leaves the split rows in tile.pairs.
    bool splits_rows() const { return pairs_.has_value(); }
    const float* origin() const { return origin_.data(); }

    // tile.products = factor * <row, centroid>; -2 for distances.
    void multiply(const Blas& blas, cudaStream_t stream, const FloatMatrix& rows, ProductTile& tile,
                  float factor = -2.0f) const;

    uint32_t count() const { return count_; }
    size_t stride() const { return stride_of(count_); }
    const float* norms() const { return norms_.data(); }

  private:
    static size_t stride_of(uint32_t count) { return padded_rows(count); }

    const Context* context_;
    uint32_t count_;
    uint32_t dims_;
    std::optional<PairMatrix> pairs_;  // set for nearest_by_tiles(); else the next three are
    Buffer<__half> halves_;
    Buffer<float> norms_;
    Buffer<uint32_t> scale_;
    Buffer<float> origin_;  // (dims); empty for Origin::zero
};

// Writes the nearest codeword of each row, from the products in `tile`, to codes[i * code_stride].
// For pieces too long for the encoder's own kernel.
void find_codes(const CentroidMatrix& codewords, const ProductTile& tile, size_t rows,
                uint8_t* codes, size_t code_stride, cudaStream_t stream);

}  // namespace pgwarp::gpu
