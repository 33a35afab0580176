// The scan of a small batch, query by query: a query's entries are shared out over several blocks,
// each with the query's table in float32 in shared memory and a selection of its own.
#pragma once

#include "kernels/cuda/lists/search_state.h"

namespace pgwarp::gpu {

struct QueryScan {
    StoreView store;
    QueryView queries;         // with tile_starts
    const float* tables;       // (query)(float_table_size); null: each block makes its own
    uint32_t splits;           // blocks a query
    CandidateView candidates;  // split i writes candidates_for(k) keys from that many times i on
    // Only these queries; null: all.
    const uint32_t* only = nullptr;
    const uint32_t* only_count = nullptr;
};
void scan_queries(const QueryScan& scan, const Context& context, cudaStream_t stream);

// The queries of which candidates were lost: (count), and how many.
void list_overflows(const CandidateView& candidates, uint32_t queries, uint32_t* overflowed,
                    uint32_t* count, cudaStream_t stream);

}  // namespace pgwarp::gpu
