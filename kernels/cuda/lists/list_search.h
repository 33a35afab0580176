// Enqueues all kernels and copies of one batch of searches.
#pragma once

#include "kernels/cuda/products/assign.h"
#include "kernels/cuda/lists/finish.h"
#include "kernels/cuda/lists/filter.h"
#include "kernels/cuda/lists/refine.h"
#include "kernels/cuda/lists/search_plan.h"
#include "kernels/cuda/lists/search_state.h"

#include <memory>

namespace pgwarp::gpu {

// Streams and buffers that are reused from one batch to the next.
struct ListSearchSpace {
    explicit ListSearchSpace(Stream::Priority priority) : stream(priority), copies(priority) {}

    Stream stream;
    std::unique_ptr<Blas> blas;  // created by the first search by list
    Buffer<char> scratch;
    ProductTile coarse_tile;
    // Runs concurrently with `stream`: copies probed lists to the host, or builds the tables of a
    // small batch.
    Stream copies;
    Event chosen, copied;
};

struct SearchRequest {
    StoreView store;
    const CentroidMatrix* centroids;
    SearchShape shape;
    const float* vectors;  // (queries)(dims), on the device
    ListQuery* wanted;     // (queries), on the device; the search may lower probes
    // Mapped host memory: (queries)(k), (queries) and (queries)(probes).
    Neighbor* found;
    uint32_t* found_counts;
    uint32_t* probed;
    // If the shape is filtered: all queries' conditions and values on the device, and pinned host
    // memory for (queries) of SearchedLists. The other fields are the search's own.
    FilterView filter{};
    SearchedLists* searched = nullptr;
    Start start = Start::after;  // of the first kernel
    uint32_t* taken = nullptr;  // (queries), mapped host memory; written for those with a threshold
    // If the shape is refined: all queries, as given, and (queries) in mapped host memory.
    const float* given = nullptr;
    float* left_out = nullptr;
    const StoreView* stores = nullptr;  // (queries), on the device, if the shape is mixed
};

// Enqueues the whole search; it is complete in the order of space.stream.
void search_lists(const Context& context, ListSearchSpace& space, const SearchRequest& request,
                  const SearchPlan& plan);

}  // namespace pgwarp::gpu
