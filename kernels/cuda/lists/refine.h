// The last step of a refined search: instead of finish_search(), scores the candidates by their
// refinements, and returns those that may be among the wanted rows (list_store.h).
#pragma once

#include "kernels/cuda/base/stream.h"
#include "kernels/cuda/lists/search_state.h"

namespace pgwarp::gpu {

// As given: queries and centroids are not moved (far_lists.h). A refinement is of x - c for these
// very floats, and the bound of its error holds for sums of their differences.
struct RefinedInput {
    const float* vectors;    // (count)(dims)
    const float* centroids;  // (lists)(dims)
    // (lists): (entries of the list)(refinement_stride(dims)); null: it has none.
    const uint8_t* const* refinements;
};

// In mapped host memory.
struct RefinedAnswers {
    Neighbor* found;         // (count)(stride)
    size_t stride;           // at least k of any query
    uint32_t* found_counts;  // (count)
    float* left_out;         // (count)
};

void refine_search(const StoreView& store, const QueryView& queries,
                   const CandidateView& candidates, const RefinedInput& input,
                   const RefinedAnswers& answers, const Context& context, Turn turn);

}  // namespace pgwarp::gpu
