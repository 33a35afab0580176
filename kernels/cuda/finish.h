// The end of a list search: the best candidates, re-scored in float32, with their TIDs.
#pragma once

#include "kernels/cuda/search_state.h"

namespace pgwarp::gpu {

// Where the answers go: memory of the device, or of the host where the device reaches it.
struct AnswerView {
    Neighbor* found;  // (count)(stride)
    size_t stride;
    uint32_t* found_counts;  // (count)
};
void finish_search(const StoreView& store, const QueryView& queries,
                   const CandidateView& candidates, const AnswerView& answers, cudaStream_t stream);

}  // namespace pgwarp::gpu
