// The last step of a refined search: instead of finish_search(), scores the candidates by their
// refinements, and returns those that may be among the wanted rows (list_store.h).
#pragma once

#include "kernels/cuda/base/stream.h"
#include "kernels/cuda/lists/search_state.h"

namespace pgwarp::gpu {

// In mapped host memory.
struct RefinedAnswers {
    Neighbor* found;         // (count)(stride)
    size_t stride;           // at least k of any query
    uint32_t* found_counts;  // (count)
    float* left_out;         // (count)
};

// `given`: (count)(dims), the queries as given, not moved (far_lists.h).
void refine_search(const StoreView& store, const QueryView& queries,
                   const CandidateView& candidates, const float* given,
                   const RefinedAnswers& answers, const Context& context, Turn turn);

}  // namespace pgwarp::gpu
