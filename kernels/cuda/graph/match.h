// Compares rows of a group with each other: the samples of a row, or a leaf of a tree. Of each pair
// with at least one new row, each row is proposed to the other if it is nearer than the last
// neighbor in the other's list.
//
// Distances come from tensor cores, as products in TF32. A row of the group is subtracted from all
// of them first, so that the rounding error is relative to the diameter of the group, not to the
// distance from the origin. L1 distances are plain sums.
#pragma once

#include "kernels/cuda/graph/proposals.h"
#include "kernels/cuda/graph/samples.h"

namespace pgwarp::gpu {

// Which pairs are not compared.
enum class KnownPairs : uint8_t {
    nothing,
    first_set,  // pairs of the rows below the border: they have a graph, the others were added
    both_sets,  // pairs on the same side of the border: two graphs that are merged
};

struct Matching {
    GraphView view;
    ProposalView proposals;
    KnownPairs known;
    uint32_t border;
    unsigned long long* compared;  // pairs, added to
};

// Leaves [first, first + count) of the order at this level (see trees.h).
void match_leaves(const Matching& matching, const uint32_t* order, uint32_t level, uint32_t first,
                  uint32_t count, cudaStream_t stream);

// The samples of rows order[first .. first + count).
void match_samples(const Matching& matching, const SampleView& samples, const uint32_t* order,
                   uint32_t first, uint32_t count, cudaStream_t stream);

}  // namespace pgwarp::gpu
