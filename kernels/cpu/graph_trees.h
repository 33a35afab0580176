// Groups of nearby rows to start a descent from: the leaves of a tree of random hyperplanes.
#pragma once

#include "kernels/knn_graph.h"
#include "kernels/workers.h"

#include <vector>

namespace pgwarp {

// All rows in an order that tends to place near ones together, cut into leaves: leaf i is
// order[begins[i] .. begins[i + 1]).
struct Leaves {
    std::vector<uint32_t> order;   // (count)
    std::vector<uint32_t> begins;  // (leaves + 1)

    size_t count() const { return begins.size() - 1; }
};

// Positions of all rows along some directions, each the difference of two rows. The first levels of
// all trees share the one pass over the rows that this takes.
struct Projections {
    size_t count;                  // of directions
    std::vector<float> positions;  // (rows)(count)
};
Projections project_rows(Workers& workers, const GraphRows& rows, size_t count, uint64_t seed);

// Splits each group at the median until none is larger than leaf_rows: along `levels` directions of
// the projections, from `first` on, and then along the difference of two rows of the group.
struct TopLevels {
    const Projections* projections;
    size_t first;
    size_t levels;
};
void grow_tree(Workers& workers, const GraphRows& rows, size_t leaf_rows, const TopLevels& top,
               uint64_t seed, Leaves& leaves);

// The same number of leaves, filled at random.
void deal_leaves(const GraphRows& rows, size_t leaf_rows, uint64_t seed, Leaves& leaves);

}  // namespace pgwarp
