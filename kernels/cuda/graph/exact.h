// The exact graph on the device: the nearest of all rows of a range, for the rows of another.
//
// Candidates, some more than wanted, come from tiles of products that are good to 2^-21 of the
// norms (products.h); their distances then from the rows themselves. Where that does not prove that
// nobody was missed, a row is searched for once more, without products. Where rows are short and
// neighbors few, filter.h finds the candidates faster.
#pragma once

#include "kernels/cuda/graph/rows.h"
#include "kernels/cuda/base/stream.h"

#include <functional>

namespace pgwarp::gpu {

struct RowRange {
    uint32_t begin, end;
    uint32_t size() const { return end - begin; }
};

struct ExactWork {
    GraphView view;
    RowRange queries;  // whose lists are filled
    RowRange others;   // with the nearest of these, but for themselves
    uint32_t degree;   // up to max_exact_degree
    uint64_t* lists;   // (view.count)(degree)
    bool merge;        // lists hold other edges to merge with; else they are overwritten
    // (view.count), or null: so many neighbors as a list has places are known to be no farther than
    // this, so that nobody else who is farther is wanted.
    const float* limits;
    // So many of the queries are done; before each piece of work.
    std::function<void(uint64_t done)> progress;
};
inline constexpr uint32_t max_exact_degree = 2000;

// Finds the lists of some rows, by their numbers on the device, or of all queries where these are
// null.
void exact_lists_of(const Context& context, const Blas& blas, cudaStream_t stream,
                    const ExactWork& work, const uint32_t* numbers, uint32_t count);

// The last step of it, for candidates that come from elsewhere. Keys, (queries)(candidates) in any
// order, no_key for none, become lists. The row of query q is first + q, or numbers[q].
struct CandidateLists {
    GraphView view;
    const uint32_t* numbers;
    uint32_t first;
    uint32_t queries;
    const uint64_t* keys;
    uint32_t candidates;
    uint32_t degree;
    uint64_t* lists;
    bool merge;
    RowRange others;  // edges to these in lists to merge with are left out: they come again
};
void finish_candidates(const CandidateLists& candidates, cudaStream_t stream);

}  // namespace pgwarp::gpu
