// Groups of near rows, to begin with: the leaves of a tree of random planes, all leaves of a level
// halved at once.
//
// Each group's rows are sorted along the difference of two of them, and halved by their places. The
// groups of a level are all about equal, so that where they begin follows from their number alone.
#pragma once

#include "kernels/cuda/graph/rows.h"

namespace pgwarp::gpu {

// Group g of 2^level is [group_begin(g), group_begin(g + 1)) of the order.
PGWARP_BOTH uint32_t group_begin(uint32_t group, uint32_t level, uint32_t count) {
    return static_cast<uint32_t>((static_cast<uint64_t>(count) * group) >> level);
}
// The group that a place is in.
PGWARP_BOTH uint32_t group_of(uint32_t place, uint32_t level, uint32_t count) {
    return static_cast<uint32_t>((((static_cast<uint64_t>(place) + 1) << level) - 1) / count);
}

class GraphTrees {
  public:
    GraphTrees(const Context& context, const GraphView& view, size_t leaf_rows);

    static size_t bytes(size_t count);

    // Halves level by level; or, where not `by_planes`, deals the rows to the leaves by chance.
    void grow(uint64_t seed, bool by_planes, cudaStream_t stream);

    uint32_t levels() const { return levels_; }
    uint32_t leaves() const { return 1u << levels_; }
    uint32_t largest_leaf() const;
    const uint32_t* order() const { return orders_[now_].data(); }

  private:
    void sort(uint32_t first_bit, uint32_t end_bit, cudaStream_t stream);

    const Context& context_;
    const GraphView view_;
    uint32_t levels_ = 0;
    Buffer<uint64_t> keys_[2];
    Buffer<uint32_t> orders_[2];
    int now_ = 0;
    Buffer<char> scratch_;
};

}  // namespace pgwarp::gpu
