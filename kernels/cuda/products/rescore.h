// Exact distances of the candidates of a search, and the keys that candidates are selected by.
#pragma once

#include "kernels/cuda/base/stream.h"
#include "kernels/executor.h"

namespace pgwarp::gpu {

inline constexpr uint32_t max_exact_k = 2048;

// Rounding errors of the products may reorder near ties, so more than k candidates are re-scored.
uint32_t candidates_to_rescore(uint32_t k);

// The check that the candidates contain the k nearest. Candidates are selected by products, which
// have a rounding error. A row that is not a candidate cannot be nearer than the last candidate's
// approximate distance less that error. If the k-th exact distance is below this, the result is
// exact.
struct CompletenessCheck {
    uint32_t* queries =
        nullptr;  // queries to search again exactly are appended here; null: no check
    uint32_t* count;
    uint32_t first;          // number of the first query
    const float* origin;     // (dims), or null
    const uint32_t* scales;  // bits of the largest magnitude: of the queries, then of each row tile
    uint32_t tiles;
    uint32_t rows;  // of all tiles
};

struct Rescoring {
    const float* queries;
    const float* rows;
    const uint64_t* ids;
    uint32_t dims;
    bool l2;
    uint32_t k;
    uint32_t candidates;   // per query
    const uint64_t* keys;  // (query)(candidates)
    Neighbor* nearest;     // (query)(k)
    bool merge;
    const uint32_t* numbers = nullptr;  // queries to rescore; null: all
    CompletenessCheck completeness = {};
};

// Re-scores the candidates of each query in float32 from the vectors, sorts them, and merges them
// with earlier results.
void rescore(const Rescoring& rescoring, size_t queries, cudaStream_t stream);

// Keys of no candidate.
void clear_keys(uint64_t* keys, size_t count, cudaStream_t stream);
// Rows of these keys were re-scored and may be gone: only their distances remain, as bounds for new
// rows.
void make_keys_stale(uint64_t* keys, size_t count, uint32_t candidates, cudaStream_t stream);
// The result of a query without rows.
void clear_neighbors(Neighbor* nearest, size_t count, cudaStream_t stream);

}  // namespace pgwarp::gpu
