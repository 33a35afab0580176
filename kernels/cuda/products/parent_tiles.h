// Finds the list of each row where lists have parents (quantizer.h): the nearest of those lists
// whose parents are nearest to the row's own parent. Rows are sorted by their parent, and tiles of
// one parent's rows are compared with tiles of the lists near it (tile_products.h), instead of with
// all lists.
//
// The CPU takes the parents that are nearest to the row itself: some rows get another list there.
#pragma once

#include "kernels/cuda/products/assign.h"
#include "kernels/quantizer.h"

#include <optional>
#include <vector>

namespace pgwarp::gpu {

class ParentTiles {
  public:
    // `centroids`: (shape.lists)(shape.dims) on the device. fits_tiles(), and there are parents.
    ParentTiles(const Context& context, const Blas& blas, cudaStream_t stream,
                const float* centroids, const Quantizer& quantizer);

    // Leaves the split rows in tile.pairs, measured from origin(). The more rows, the better tiles
    // are filled: some tens of rows of each parent.
    void find_nearest(const Blas& blas, cudaStream_t stream, const FloatMatrix& rows,
                      ProductTile& tile, uint32_t* nearest);

    const float* origin() const { return parents_->origin(); }

  private:
    void gather_lists(cudaStream_t stream, const float* centroids, const Quantizer& quantizer);
    void choose_near(const Blas& blas, cudaStream_t stream);

    const Context& context_;
    uint32_t dims_;
    uint32_t count_;  // of parents
    Buffer<float> parent_centroids_;
    std::optional<CentroidMatrix> parents_;
    Buffer<float> origin_;
    // Lists by parent, each parent's in whole tiles.
    PairMatrix lists_;
    Buffer<uint32_t> list_of_;          // the list of each row of lists_; no_index: padding
    std::vector<uint32_t> first_tile_;  // (parents + 1), of lists_
    Buffer<uint32_t> near_begin_;       // (parents + 1)
    Buffer<uint32_t> near_tiles_;       // of lists_, by parent of the rows
    // Of the rows under way.
    Buffer<uint32_t> parent_of_, rank_;  // (rows)
    Buffer<uint32_t> sizes_;             // (parents)
    Buffer<uint32_t> starts_;            // (parents), in tiles
    Buffer<uint32_t> tile_parent_;       // (tiles); no_index: the tile is not used
    Buffer<uint32_t> row_at_;            // (tiles)(pair_rows(1)); no_index: padding
    PairMatrix sorted_;
    Buffer<uint64_t> keys_;
};

}  // namespace pgwarp::gpu
