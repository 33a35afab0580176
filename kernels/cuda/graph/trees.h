// Groups of near rows, to start a descent with: the leaves of a random projection tree. All groups
// of a level are halved at once.
//
// The rows of a group are sorted by their projection onto the difference of two of them, and halved
// in the middle. Groups of a level have nearly equal sizes, so that a group's begin follows from
// its number alone.
#pragma once

#include "kernels/cuda/graph/rows.h"

namespace pgwarp::gpu {

// Group g of 2^level is [group_begin(g), group_begin(g + 1)) of the order.
PGWARP_HOST_DEVICE uint32_t group_begin(uint32_t group, uint32_t level, uint32_t count) {
    return static_cast<uint32_t>((static_cast<uint64_t>(count) * group) >> level);
}
// The group that contains a place of the order.
PGWARP_HOST_DEVICE uint32_t group_of(uint32_t place, uint32_t level, uint32_t count) {
    return static_cast<uint32_t>((((static_cast<uint64_t>(place) + 1) << level) - 1) / count);
}

class GraphTrees {
  public:
    GraphTrees(const Context& context, const GraphView& view, size_t leaf_rows);

    static size_t bytes(size_t count);

    // by_planes: halves groups level by level; else assigns rows to leaves at random.
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
