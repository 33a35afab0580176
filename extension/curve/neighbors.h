// The true neighbors of the recall curve's queries, as a pass over the table collects them.
//
// All queries get enough neighbors for k = 100. A few get 1,000 as well: more would take much
// memory and time, and the recall of 1,000 neighbors differs little from query to query.
#pragma once

#include "kernels/executor.h"
#include "extension/curve/curve.h"

namespace pgwarp {

// One more than the curve needs: a query is its own nearest neighbor.
inline constexpr uint32 neighbors_kept = curve_neighbors + 1;
inline constexpr uint32 wide_neighbors_kept = most_curve_neighbors + 1;
// The first queries, which are in random order: they also decide how far the curve is measured.
inline constexpr uint32 wide_queries(uint32 queries) {
    return queries < curve_trial_queries ? queries : curve_trial_queries;
}

// What one participant collects: (queries)(neighbors_kept), then
// (wide_queries)(wide_neighbors_kept).
inline constexpr Size wide_begin(uint32 queries) {
    return Size{queries} * neighbors_kept;
}
inline constexpr Size kept_neighbors(uint32 queries) {
    return wide_begin(queries) + Size{wide_queries(queries)} * wide_neighbors_kept;
}
void clear_neighbors(uint32 queries, Neighbor* neighbors);

// Rows in index form to compare with all queries. Runs inside guarded(); it adds to the neighbors
// found before, so it cannot be repeated after an interrupt.
struct ComparedRows {
    const float* queries;  // (query_count)(dims)
    uint32 query_count;
    const float* rows;  // (count)(dims)
    Size count;
    const uint64* tids;
    uint32 dims;
    Metric metric;
};
void add_neighbors(Executor* executor, const ComparedRows& compared, Neighbor* neighbors);

// Merges what all participants collected, drops each query itself, and makes queries for
// measure_curve. `vectors` are the queries as the index encodes them.
struct CurveInput {
    const float* const* vectors;  // (count)
    const uint64* tids;           // (count), of the queries
    uint32 count;
};
CurveQuery* merge_neighbors(const CurveInput& input, const Neighbor* neighbors,
                            uint32 participants);

}  // namespace pgwarp
