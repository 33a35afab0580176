// Chooses the lists that a query probes, and in a large batch counts the queries that visit a list.
#pragma once

#include "kernels/cuda/base/stream.h"
#include "kernels/cuda/lists/search_state.h"

namespace pgwarp::gpu {

// For a large batch: a query's first bound comes from up to `room` entries of its nearest lists.
struct FirstLists {
    uint32_t* counts;  // (count): number of lists that a query scans for the bound
    uint32_t room;     // entries; at least list_candidates(k)
};

// For a large batch: counts the queries that visit each list. See bins.h.
struct VisitCounts {
    uint32_t* sizes;  // (parts * lists), zero initially
    uint32_t* ranks;  // (count)(probes): position of the visit in its bin; no_index for empty lists
    uint32_t part_queries;
};

struct ProbeChoice {
    FirstLists first;       // counts null: not wanted
    VisitCounts visits;     // sizes null: not wanted
    uint32_t* host_probed;  // (count)(probes): a copy of `probed` in mapped host memory; or null
};

// Fills probed, terms and (if not null) tile_starts of the queries, and the outputs of `choice`.
void choose_probes(const StoreView& store, const QueryView& queries, const ProbeChoice& choice,
                   Turn turn);

}  // namespace pgwarp::gpu
