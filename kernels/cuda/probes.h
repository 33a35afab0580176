// Which lists a query visits, and in a large batch, which queries visit a list.
#pragma once

#include "kernels/cuda/search_state.h"

namespace pgwarp::gpu {

// For a large batch: the entries of a query's nearest lists, up to `room`, give a first bound.
struct FirstLists {
    uint32_t* counts;  // (count): how many of its lists a query scans for the bound
    uint32_t room;     // entries, at least as many as there are candidates
};

// Fills probed, terms and (where wanted) tile_starts of the queries; `first`, where not null, too.
// `host_probed`, (count)(host_stride), gets the lists as well.
void choose_probes(const StoreView& store, const QueryView& queries, const FirstLists* first,
                   uint32_t* host_probed, size_t host_stride, cudaStream_t stream);

}  // namespace pgwarp::gpu
