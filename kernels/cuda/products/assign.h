// The nearest centroid of each row. Short vectors are compared tile by tile (tile_products.h); else
// there are products (products.h), and the smallest of each row with the centroids' norms added.
#pragma once

#include "kernels/cuda/base/context.h"
#include "kernels/cuda/products/products.h"
#include "kernels/cuda/products/tile_products.h"

#include <optional>

namespace pgwarp::gpu {

// The products of one chunk of rows, and what making them takes. Used again for the next chunk.
struct ProductTile {
    Buffer<__half> halves;
    Buffer<float> row_norms;  // (rows)
    Buffer<float> products;   // (rows)(stride of the centroids)
    Buffer<uint32_t> scale;
    Buffer<float> factors;
    // Where there are no products:
    PairMatrix pairs;  // the rows, measured from the centroids' origin
    Buffer<uint64_t> keys;
};

// Where vectors are measured from. For distances from amidst the centroids, so that they are right
// also where all vectors are far from zero; for plain inner products and norms from zero.
enum class Origin { zero, centroids };

// Centroids made ready for many chunks of rows, that either their nearest is wanted for, or all
// products.
enum class Wanted { nearest, products };
class CentroidMatrix {
  public:
    // `centroids`, (count)(dims), is on the device, and read in the stream's order.
    CentroidMatrix(const Context& context, cudaStream_t stream, const float* centroids,
                   uint32_t count, uint32_t dims, Origin origin, Wanted wanted);

    // How many rows a tile of so many bytes has room for.
    static size_t tile_rows(uint32_t count, uint32_t dims, size_t bytes);

    // nearest[i] of the rows. Of equals the lowest number.
    void find_nearest(const Blas& blas, cudaStream_t stream, const FloatMatrix& rows,
                      ProductTile& tile, uint32_t* nearest) const;

    // Whether that leaves the rows split in the tile.
    bool splits_rows() const { return pairs_.has_value(); }
    const float* origin() const { return origin_.data(); }

    // factor * <row, centroid>; for distances -2.
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
    std::optional<PairMatrix> pairs_;  // or what follows:
    Buffer<__half> halves_;
    Buffer<float> norms_;
    Buffer<uint32_t> scale_;
    Buffer<float> origin_;  // or none
};

// The nearest of `rows` rows from their tile, as codes: codes[i * code_stride]. For pieces too long
// for the encoder's own kernel.
void find_codes(const CentroidMatrix& codewords, const ProductTile& tile, size_t rows,
                uint8_t* codes, size_t code_stride, cudaStream_t stream);

}  // namespace pgwarp::gpu
