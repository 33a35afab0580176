// One pass over the rows of a table, which come a block at a time, each once: rows are encoded with
// one model, and the nearest of all of them to some queries are found. Either may be left out.
//
// A pass is used by one thread. Blocks may overlap: while one is worked on, the next is taken.
#pragma once

#include "kernels/executor.h"

#include <memory>

namespace pgwarp {

struct RowPassInput {
    const Quantizer* quantizer = nullptr;  // read by begin_pass() only; null: nothing is encoded
    uint32_t dims = 0;                     // of the table's rows, which the model may turn
    Metric metric = Metric::l2;            // cosine: rows and queries are normalised by the caller
    size_t block_rows = 0;                 // at most, of one block
    size_t expected_rows = 0;              // of all blocks, about; 0: nobody knows

    const float* queries = nullptr;  // (query_count)(dims), untouched while the pass lives
    size_t query_count = 0;          // 0: nothing is searched for
    uint32_t k = 0;
    // finish() tells the nearest so far, for whoever may have to go on without this pass.
    bool tell_nearest = false;
};

// Valid until the next call.
struct PassedBlock {
    size_t count = 0;
    const uint32_t* lists = nullptr;  // (count)
    const uint8_t* codes = nullptr;   // (count)(m)
    const float* offsets = nullptr;   // (count)
    // With tell_nearest: (query_count)(k), of the first so many blocks of the pass, this one among
    // them. Blocks are worked on by the batch: some that are still to be told of may be, too.
    const Neighbor* nearest = nullptr;
    size_t searched_blocks = 0;
};

class RowPass {
  public:
    // Blocks between start() and finish(). A device is busy with tens of thousands of rows at once.
    static constexpr size_t most_under_way = 16;

    virtual ~RowPass() = default;

    // Takes a block, which stays untouched until finish() has told of it. Where it throws
    // Interrupted, nothing was taken.
    virtual void start(const float* rows, const uint64_t* ids, size_t count) = 0;

    // The oldest block under way. May be called again where it throws Interrupted.
    virtual PassedBlock finish() = 0;

    // Once no block is under way: (query_count)(k), sorted, with infinite distances at the end
    // where there are fewer rows. No block comes after it.
    virtual void nearest(Neighbor* out) = 0;
};

// The pass of an executor that has none of its own: by encode() and exact_search(), in finish().
std::unique_ptr<RowPass> make_plain_pass(Executor& executor, Executor& searcher,
                                         const RowPassInput& input);

}  // namespace pgwarp
