// Lists of vectors that are all far from zero, compared with how far they are from each other.
//
// A distance is then the small difference of large terms: <q, w> and <c, w> grow with the distance
// from zero, and half precision would lose all that matters. So the store of such lists measures
// everything from an origin o amidst the centroids. L2 distances are the same from there, with
// c - o for c, q - o for q, and offsets |r'|^2 + 2 <c - o, r'>: less by 2 <o, r'> than those given.
#pragma once

#include "kernels/cuda/lists/code_tiles.h"
#include "kernels/cuda/base/context.h"
#include "kernels/cuda/lists/tile_codes.h"
#include "kernels/quantizer.h"

#include <vector>

namespace pgwarp::gpu {

class FarLists {
  public:
    // Most lists are not, and inner products never: then there is no origin, and nothing to do.
    FarLists(const Context& context, cudaStream_t stream, const Quantizer& quantizer);

    bool any() const { return origin_.data() != nullptr; }
    // The quantizer as the store sees it, valid while both live.
    Quantizer quantizer() const { return moved_; }

    // vectors (count)(dims) on the device: less the origin.
    void move_queries(float* vectors, size_t count, cudaStream_t stream) const;
    // Offsets of some entries of a list, whose codes are tiled already.
    void move_offsets(const CodeLayout& layout, const uint8_t* tiles, EntryRange entries,
                      float* offsets, cudaStream_t stream) const;

  private:
    Quantizer moved_;
    std::vector<float> centroids_;
    Buffer<float> origin_;    // (dims)
    Buffer<float> products_;  // (m)(256): 2 <o, codeword>
};

}  // namespace pgwarp::gpu
