// One batch's way through the device.
#pragma once

#include "kernels/cuda/products/assign.h"
#include "kernels/cuda/lists/finish.h"
#include "kernels/cuda/lists/search_plan.h"
#include "kernels/cuda/lists/search_state.h"

#include <memory>

namespace pgwarp::gpu {

// What a batch keeps from one search to the next.
struct SearchSpace {
    explicit SearchSpace(Stream::Priority priority) : stream(priority), copies(priority) {}

    Stream stream;
    std::unique_ptr<Blas> blas;  // once there was a search by list
    Buffer<char> scratch;
    ProductTile coarse_tile;
    // What goes on beside it: the probed lists to the host, or the tables of a small batch.
    Stream copies;
    Event chosen, copied;
};

struct SearchRequest {
    StoreView store;
    const CentroidMatrix* centroids;
    SearchShape shape;
    const float* vectors;     // (queries)(dims), on the device
    const ListQuery* wanted;  // (queries), on the device
    // Host memory that the device reaches; (queries)(k), (queries) and (queries)(probes).
    Neighbor* found;
    uint32_t* found_counts;
    uint32_t* probed;
};

// Gives the whole search to the space's stream.
void search_lists(const Context& context, SearchSpace& space, const SearchRequest& request,
                  const SearchPlan& plan);

}  // namespace pgwarp::gpu
