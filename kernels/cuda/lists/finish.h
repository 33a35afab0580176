// The last step of a list search: the k nearest candidates with their TIDs.
#pragma once

#include "kernels/cuda/base/stream.h"
#include "kernels/cuda/lists/filter.h"
#include "kernels/cuda/lists/search_state.h"

namespace pgwarp::gpu {

// Output: device memory, or mapped host memory.
struct AnswerView {
    Neighbor* found;  // (count)(stride)
    size_t stride;
    uint32_t* found_counts;  // (count)
};

// Precision of the candidates' distances. rough: sums from tables of halves, re-scored in float32.
// final: sums from tables of floats.
enum class Distances { rough, final };

void finish_search(const StoreView& store, const QueryView& queries,
                   const CandidateView& candidates, Distances distances, const AnswerView& answers,
                   Turn turn);

// For filtered queries; distances are final. Also writes `searched`.
void finish_filtered(const StoreView& store, const QueryView& queries,
                     const CandidateView& candidates, const FilterView& filter,
                     const AnswerView& answers, cudaStream_t stream);

}  // namespace pgwarp::gpu
