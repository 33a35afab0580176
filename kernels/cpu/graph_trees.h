// Groups of near rows, to begin with: the leaves of a tree of random planes.
#pragma once

#include "kernels/knn_graph.h"
#include "kernels/workers.h"

#include <vector>

namespace pgwarp {

// All rows in an order in which near ones tend to stand together, cut into leaves:
// leaf i is order[begins[i] .. begins[i + 1]).
struct Leaves {
    std::vector<uint32_t> order;   // (count)
    std::vector<uint32_t> begins;  // (leaves + 1)

    size_t count() const { return begins.size() - 1; }
};

// Each group is halved at the median by its rows' products with the difference of two of them,
// until none is larger than leaf_rows.
void grow_tree(Workers& workers, const GraphRows& rows, size_t leaf_rows, uint64_t seed,
               Leaves& leaves);

// The same number of leaves, filled by chance.
void deal_leaves(const GraphRows& rows, size_t leaf_rows, uint64_t seed, Leaves& leaves);

}  // namespace pgwarp
