// Lists of vectors that are much farther from zero than from each other.
//
// A distance is then the small difference of large terms: <q, w> and <c, w> grow with the distance
// from zero, and in half precision all significant bits would cancel. So the store of such lists
// shifts vectors by an origin o, the mean of the centroids. L2 distances do not change, with c - o
// for c, q - o for q, and offsets |r'|^2 + 2 <c - o, r'>: the given offsets less 2 <o, r'>.
#pragma once

#include "kernels/cuda/lists/code_tiles.h"
#include "kernels/cuda/lists/search_state.h"
#include "kernels/cuda/base/context.h"
#include "kernels/cuda/lists/tile_codes.h"
#include "kernels/quantizer.h"

#include <vector>

namespace pgwarp::gpu {

class FarLists {
  public:
    // Without an origin, and then without effect, if the centroids are not far from zero or the
    // metric is inner product.
    FarLists(const Context& context, cudaStream_t stream, const Quantizer& quantizer);

    bool any() const { return origin_.data() != nullptr; }
    // The shifted quantizer, as the store uses it. Valid while this object and the original
    // quantizer exist.
    Quantizer quantizer() const { return moved_; }

    // Subtracts the origin from vectors, (count)(dims) on the device.
    void move_queries(float* vectors, size_t count, cudaStream_t stream) const;
    const float* origin() const { return origin_.data(); }
    // Corrects the offsets of some entries of a list, whose codes have been tiled already.
    void move_offsets(const CodeLayout& layout, const uint8_t* tiles, EntryRange entries,
                      float* offsets, cudaStream_t stream) const;

  private:
    Quantizer moved_;
    std::vector<float> centroids_;
    Buffer<float> origin_;    // (dims)
    Buffer<float> products_;  // (m)(256): 2 <o, codeword>
};

// Subtracts from each vector the origin of its store, if that has one. All on the device.
void move_mixed_queries(float* vectors, size_t count, uint32_t dims, const StoreView* stores,
                        cudaStream_t stream);

}  // namespace pgwarp::gpu
