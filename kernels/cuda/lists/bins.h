// Large batches are scanned list by list: the pairs of (query, list) sorted by list, and cut into
// pieces of work of up to four queries each.
#pragma once

#include "kernels/cuda/lists/probes.h"
#include "kernels/cuda/lists/search_state.h"

namespace pgwarp::gpu {

struct Bins {
    uint32_t bins;          // parts * lists
    uint32_t part_queries;  // queries of a part: their tables together fit the second-level cache
    uint32_t* sizes;        // (bins + 1): visits; then where a bin's visits begin
    uint32_t* item_starts;  // (bins + 1)
    Visit* visits;
    WorkItem* items;
    uint32_t* item_count;  // two numbers: how many items there are, and how many were taken
};

// Sorts the visits of all probed lists, which were counted as they were chosen.
void sort_visits(const StoreView& store, const QueryView& queries, const uint32_t* ranks,
                 uint32_t tiles_per_item, const Bins& bins, cudaStream_t stream);

// Those of each query's first lists only. `cursors`: (bins), scratch.
void sort_first_visits(const StoreView& store, const QueryView& queries, const FirstLists& first,
                       uint32_t* cursors, uint32_t tiles_per_item, const Bins& bins,
                       cudaStream_t stream);

}  // namespace pgwarp::gpu
