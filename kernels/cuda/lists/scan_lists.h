// The scan of a large batch, list by list: a block holds the tables of four queries, interleaved,
// in shared memory and reads the list's codes once for the four.
#pragma once

#include "kernels/cuda/lists/bins.h"

namespace pgwarp::gpu {

struct ListScan {
    StoreView store;
    QueryView queries;
    const uint4* tables;  // (query)(half_table_units)
    Bins bins;
    // First pass: all distances, (query)(distance_room). Null in the second pass.
    float* distances;
    uint32_t distance_room;
    // Second pass: candidates within each query's bound.
    const float* bounds;  // (query)
    CandidateView candidates;
};
void scan_lists(const ListScan& scan, uint32_t processors, cudaStream_t stream);

// Each query's bound: the list_candidates(k)-th smallest of the distances in its first lists,
// or infinity if these have fewer entries.
void find_bounds(const StoreView& store, const QueryView& queries, const FirstLists& first,
                 const float* distances, float* bounds, cudaStream_t stream);

}  // namespace pgwarp::gpu
