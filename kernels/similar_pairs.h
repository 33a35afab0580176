// All pairs of rows within a distance of each other.
//
// The caller asks for one rectangle of the distance matrix after the other and takes what is found
// there, so that no more than one rectangle's pairs are in memory.
#pragma once

#include "kernels/knn_graph.h"

#include <memory>
#include <utility>
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

// How finders on the CPU reject most pairs (kernels/cpu/pair_filter.h).
struct PairPlan;

struct PairSearch {
    float bound;  // the largest distance of a pair
    // Shared by the finders of a search that takes its rows in parts: to make a plan may take
    // longer than to compare two parts. Null: each finder makes its own, where that pays.
    std::shared_ptr<const PairPlan> plan;

    PairSearch(float most, std::shared_ptr<const PairPlan> shared = nullptr)
        : bound(most), plan(std::move(shared)) {}
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
                                                 const PairSearch& search);

// The work of all finders of a search.
struct PairWork {
    uint32_t dims;
    Metric metric;
    double pairs;  // to compare
    double rows;   // that finders get: a row counts for each of them
};

// Rows of the sample for make_pair_plan(), which takes no more than `memory` bytes then, the sample
// among them. 0: no plan pays, or there is not enough memory for one.
size_t pair_sample_rows(const PairWork& work, int threads, size_t memory);

// `sample`: this many rows, drawn from all, in random order. Takes seconds with the most dimensions
// that pay, a part of them without a look at interrupts. Without LAPACK, or with an empty sample,
// the plan of finders is to compare the rows themselves.
std::shared_ptr<const PairPlan> make_pair_plan(Workers& workers, const GraphRows& sample,
                                               float bound, const PairWork& work);
// The same on threads of its own.
std::shared_ptr<const PairPlan> make_pair_plan(int threads, const Interrupts& interrupts,
                                               const GraphRows& sample, float bound,
                                               const PairWork& work);

}  // namespace pgwarp
