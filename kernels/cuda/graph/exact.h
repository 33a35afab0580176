// The exact graph on the device: the nearest rows of one range, for the rows of another.
//
// Candidates, some more than the degree, come from tiles of products with an error of at most 2^-21
// of the norms (products.h). Their exact distances are then computed from the rows. A row for which
// the error bound does not prove that no neighbor is missing is searched again, without products.
// For rows of few dimensions with short lists, filter.h finds the candidates faster.
#pragma once

#include "kernels/cuda/graph/rows.h"
#include "kernels/cuda/base/blas.h"
#include "kernels/cuda/base/stream.h"

#include <functional>

namespace pgwarp::gpu {

struct RowRange {
    uint32_t begin, end;
    uint32_t size() const { return end - begin; }
};

struct ExactWork {
    GraphView view;
    RowRange queries;  // rows whose lists are filled
    RowRange others;   // rows to find neighbors among; a row is not its own neighbor
    uint32_t degree;   // up to max_exact_degree
    uint64_t* lists;   // (view.count)(degree)
    bool merge;        // lists hold other edges to merge with; else they are overwritten
    // (view.count), or null: at least `degree` neighbors of the row are known to lie within this
    // distance, so that candidates beyond it are not needed.
    const float* limits;
    // Called before each chunk of work with the number of queries that are complete.
    std::function<void(uint64_t done)> progress;
};
inline constexpr uint32_t max_exact_degree = 2000;

// Finds the lists of the `count` rows in `numbers`, which is on the device, or of the first `count`
// queries if it is null.
void exact_lists_of(const Context& context, const Blas& blas, cudaStream_t stream,
                    const ExactWork& work, const uint32_t* numbers, uint32_t count);

// The last step of the search, also for candidates of the filter: computes the exact distances of
// keys, (queries)(candidates) in any order, no_key for none, and writes the nearest to the lists.
// The row of query q is numbers[q], or first + q if numbers is null.
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
    RowRange others;  // when merging, edges to these rows in the lists are dropped: they may be
                      // candidates again
};
void finish_candidates(const CandidateLists& candidates, cudaStream_t stream);

// The distances of rows `a` from rows `b`, without products: (a)(stride). Those of cosine are of
// squared L2.
void plain_values(const GraphView& view, const RowRange& a, const RowRange& b, float* values,
                  size_t stride, cudaStream_t stream);

}  // namespace pgwarp::gpu
