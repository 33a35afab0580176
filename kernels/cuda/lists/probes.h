// Which lists a query visits, and in a large batch, which queries visit a list.
#pragma once

#include "kernels/cuda/lists/search_state.h"

namespace pgwarp::gpu {

// For a large batch: the entries of a query's nearest lists, up to `room`, give a first bound.
struct FirstLists {
    uint32_t* counts;  // (count): how many of its lists a query scans for the bound
    uint32_t room;     // entries, at least as many as there are candidates
};

// For a large batch: how many queries visit a list, counted as they choose it. See bins.h.
struct VisitCounts {
    uint32_t* sizes;  // (parts * lists), zero to begin with
    uint32_t* ranks;  // (count)(probes): how many came before; no_index where the list is empty
    uint32_t part_queries;
};

struct ProbeChoice {
    FirstLists first;       // counts null: not wanted
    VisitCounts visits;     // sizes null: not wanted
    uint32_t* host_probed;  // the lists for the caller too, (count)(probes); or null
};

// Fills probed, terms and (where wanted) tile_starts of the queries, and what is chosen.
void choose_probes(const StoreView& store, const QueryView& queries, const ProbeChoice& choice,
                   cudaStream_t stream);

}  // namespace pgwarp::gpu
