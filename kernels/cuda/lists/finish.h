// The end of a list search: the best candidates with their TIDs.
#pragma once

#include "kernels/cuda/lists/search_state.h"

namespace pgwarp::gpu {

// Where the answers go: memory of the device, or of the host where the device reaches it.
struct AnswerView {
    Neighbor* found;  // (count)(stride)
    size_t stride;
    uint32_t* found_counts;  // (count)
};

// How good the candidates' distances are: sums of a table of halves, which are scored again in
// float32, or of a table of floats already.
enum class Distances { rough, final };

void finish_search(const StoreView& store, const QueryView& queries,
                   const CandidateView& candidates, Distances distances, const AnswerView& answers,
                   cudaStream_t stream);

}  // namespace pgwarp::gpu
