// Coarse distances of a batch to many thousand centroids.
#pragma once

#include "kernels/cuda/base/stream.h"
#include "kernels/cuda/lists/search_state.h"

namespace pgwarp::gpu {

// Whether the distances make enough tiles to keep all multiprocessors busy.
bool coarse_takes_tiles(const StoreView& store, const QueryView& queries);

// Writes complete distances to queries.coarse.
void coarse_by_tiles(const StoreView& store, const QueryView& queries, Turn turn);

}  // namespace pgwarp::gpu
