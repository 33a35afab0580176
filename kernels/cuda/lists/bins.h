// Large batches are scanned list by list: the visits, pairs of (query, list), are sorted into bins
// by list, and cut into work items of up to four queries each.
#pragma once

#include "kernels/cuda/lists/probes.h"
#include "kernels/cuda/lists/search_state.h"

namespace pgwarp::gpu {

struct Bins {
    uint32_t bins;          // parts * lists
    uint32_t part_queries;  // queries of a part: their tables together fit the L2 cache
    uint32_t* sizes;        // (bins + 1): visits per bin, then start of each bin in visits
    uint32_t* item_starts;  // (bins + 1)
    Visit* visits;
    WorkItem* items;
    uint32_t* item_count;  // (2): number of items, and number of items taken by blocks
};

// Sorts the visits of all probed lists. choose_probes() has counted them: sizes and ranks.
void sort_visits(const StoreView& store, const QueryView& queries, const uint32_t* ranks,
                 uint32_t tiles_per_item, const Bins& bins, cudaStream_t stream);

// Sorts the visits of each query's first lists only. `cursors`: (bins), scratch.
void sort_first_visits(const StoreView& store, const QueryView& queries, const FirstLists& first,
                       uint32_t* cursors, uint32_t tiles_per_item, const Bins& bins,
                       cudaStream_t stream);

}  // namespace pgwarp::gpu
