// One pass over the rows of a table, which come in blocks, each row once. It encodes the rows with
// one model and finds the nearest rows to some queries; either may be left out.
//
// One thread uses a pass. Blocks overlap: the next is accepted while one is in progress.
#pragma once

#include "kernels/executor.h"

#include <memory>
#include <vector>

namespace pgwarp {

struct RowPassInput {
    const Quantizer* quantizer = nullptr;  // read by begin_pass() only; null: nothing is encoded
    uint32_t dims = 0;                     // of the table's rows; the model may rotate them
    RowElements elements = RowElements::float32;  // of the table's rows
    Metric metric = Metric::l2;  // cosine: rows and queries are normalised by the caller
    size_t block_rows = 0;       // at most, of one block
    size_t expected_rows = 0;    // of all blocks, about; 0: unknown

    const float* queries = nullptr;  // (query_count)(dims), untouched while the pass lives
    size_t query_count = 0;          // 0: nothing is searched for
    uint32_t k = 0;
    // A few queries, the first ones, find more rows as well. Not without a quantizer.
    size_t wide_count = 0;
    uint32_t wide_k = 0;
    // finish() also returns the nearest so far, for a caller that may have to continue without this
    // pass.
    bool report_nearest = false;

    // What is found: (query_count)(k), then (wide_count)(wide_k).
    size_t nearest_count() const { return query_count * k + wide_count * wide_k; }
};

// Valid until the next call of the pass.
struct PassedBlock {
    size_t count = 0;
    const uint32_t* lists = nullptr;  // (count)
    const uint8_t* codes = nullptr;   // (count)(m)
    const float* offsets = nullptr;   // (count)
    // With report_nearest: (nearest_count()), of the first searched_blocks blocks of the pass,
    // including this one. Blocks are processed in batches, so blocks that finish() has not returned
    // yet may be included.
    const Neighbor* nearest = nullptr;
    size_t searched_blocks = 0;
};

class RowPass {
  public:
    // Most blocks between start() and finish(). A device needs tens of thousands of rows to be
    // busy; a pass over several devices accepts more (Executor::most_in_flight()).
    static constexpr size_t max_in_flight = device_blocks_in_flight;

    virtual ~RowPass() = default;

    // Accepts a block, (count)(dims) of the input's elements. Its rows must stay unchanged until
    // finish() returns the block. On Interrupted the block was not accepted.
    virtual void start(const void* rows, const uint64_t* ids, size_t count) = 0;

    // Returns the oldest block in progress. May be called again after Interrupted.
    virtual PassedBlock finish() = 0;

    // Call once no block is in progress; no block may follow. `out` is (nearest_count()), of each
    // query sorted, padded with infinite distances where there are fewer rows.
    virtual void nearest(Neighbor* out) = 0;
};

// Adds the rows of a block to what was found before, by exact_search(). If that throws, nothing was
// added.
void search_block(Executor& searcher, const RowPassInput& input, const float* rows,
                  const uint64_t* ids, size_t count, std::vector<Neighbor>* nearest);

// A pass for an executor that has none of its own: finish() calls encode() and exact_search().
std::unique_ptr<RowPass> make_plain_pass(Executor& executor, Executor& searcher,
                                         const RowPassInput& input);

}  // namespace pgwarp
