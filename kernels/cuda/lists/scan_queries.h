// The scan of a small batch, query by query: several blocks share a query's entries. Each block has
// the query's table in float32 in shared memory, and its own selection.
#pragma once

#include "kernels/cuda/base/stream.h"
#include "kernels/cuda/lists/search_state.h"

namespace pgwarp::gpu {

struct QueryScan {
    StoreView store;
    QueryView queries;         // with tile_starts
    const float* tables;       // (query)(float_table_size); null: each block computes its own
    uint32_t splits;           // blocks per query
    CandidateView candidates;  // (split)(list_candidates(k))
    // Numbers of the queries to scan, and their count, on the device; null: all queries.
    const uint32_t* only = nullptr;
    const uint32_t* only_count = nullptr;
};
void scan_queries(const QueryScan& scan, const Context& context, Turn turn);

// Writes the numbers of the queries that lost candidates to `overflowed`, and their number to
// `count`.
void list_overflows(const CandidateView& candidates, uint32_t queries, uint32_t* overflowed,
                    uint32_t* count, cudaStream_t stream);

}  // namespace pgwarp::gpu
