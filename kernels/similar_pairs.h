// All pairs of rows within a distance of each other.
//
// The caller asks for one rectangle of the distance matrix after the other and takes what is found
// there, so that no more than one rectangle's pairs are in memory.
#pragma once

#include "kernels/knn_graph.h"

#include <memory>
#include <vector>

namespace pgwarp {

struct RowPair {
    uint32_t first, second;  // first < second
    float distance;          // graph_distance(); on a device it may differ by rounding
};
static_assert(sizeof(RowPair) == 12);

// Rows `a` with rows `b`: spans that are equal, or have no row in common. Of equal spans, every two
// different rows are a pair once.
struct PairRectangle {
    RowSpan a, b;

    bool is_square() const { return a.begin == b.begin && a.end == b.end; }
};

// Throws as a GraphBuilder does; a rectangle may be asked for again then. Rows and builder outlive
// it. One thread at a time uses a finder and its builder.
class PairFinder {
  public:
    virtual ~PairFinder() = default;

    // Replaces `found` by the pairs of the rectangle whose distance is at most the bound, in an
    // order that depends on the rectangle alone. False: there are more than `most`, or the finder
    // has no room for a rectangle of this size; what is in `found` then is unspecified. A pair
    // without a distance (NaN) is not found.
    virtual bool find(const PairRectangle& rectangle, size_t most, std::vector<RowPair>* found) = 0;

    // Rows of a side of rectangles that keep the finder busy.
    virtual size_t best_side() const noexcept = 0;
};

// On the threads of the caller's pool, which outlives it.
class Workers;
std::unique_ptr<PairFinder> make_cpu_pair_finder(Workers& workers, const GraphRows& rows,
                                                 float bound);

}  // namespace pgwarp
