// Coarse distances of a batch to very many centroids.
#pragma once

#include "kernels/cuda/base/stream.h"
#include "kernels/cuda/lists/search_state.h"

namespace pgwarp::gpu {

// Whether there are so many distances that tiles of them keep the device busy.
bool coarse_takes_tiles(const StoreView& store, const QueryView& queries);

// Writes complete distances to queries.coarse.
void coarse_by_tiles(const StoreView& store, const QueryView& queries, Turn turn);

}  // namespace pgwarp::gpu
