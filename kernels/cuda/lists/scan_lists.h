// The scan of a large batch, list by list: four queries' tables side by side in shared memory, the
// list's codes read once for the four.
#pragma once

#include "kernels/cuda/lists/bins.h"

namespace pgwarp::gpu {

struct ListScan {
    StoreView store;
    QueryView queries;
    const uint4* tables;  // (query)(half_table_units)
    Bins bins;
    // The first pass: all distances, (query)(distance_room), and nothing else.
    float* distances;
    uint32_t distance_room;
    // The second: candidates up to each query's bound.
    const float* bounds;  // (query)
    CandidateView candidates;
};
void scan_lists(const ListScan& scan, uint32_t processors, cudaStream_t stream);

// Each query's bound: the distance of its last candidate among the distances of its first lists,
// or infinity where they are too few.
void find_bounds(const StoreView& store, const QueryView& queries, const FirstLists& first,
                 const float* distances, float* bounds, cudaStream_t stream);

}  // namespace pgwarp::gpu
