// Introducing rows to each other: the samples of a row, or the leaves of a tree. Each two of them,
// one at least new, are compared, and proposed to each other where that is nearer than what the
// other has.
//
// Distances come from products of tensor cores, in TF32, of rows less one amidst them: what is off
// is off by a share of the neighborhood's size, not of the distance from the origin. Those of L1
// are plain sums.
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
