// The neighbors of a row that are compared with each other in an iteration (section 4.1 of the
// paper): a fixed number of new and of old neighbors (forwards), and of rows that have sampled this
// row (backwards).
//
// Backwards, a row has a hash table without chaining of the rows that sample it: of several that
// hash to one place, the one with the smallest random number stays. The result does not depend on
// the order of threads, so that an iteration is reproducible.
#pragma once

#include "kernels/cuda/graph/rows.h"

namespace pgwarp::gpu {

struct SampleView {
    const uint32_t* fresh_forwards;  // (count)(samples), padded with no_row
    const uint32_t* old_forwards;
    const uint32_t* fresh_backwards;  // (count)(places): scatter(row ^ salt), or no_index
    const uint32_t* old_backwards;
    uint32_t samples;
    uint32_t places;
    uint32_t salt;
};

class GraphSamples {
  public:
    GraphSamples(const Context& context, size_t count, uint32_t samples);

    static size_t row_bytes(uint32_t samples);

    // Draws samples from the lists, (count)(degree), and clears the fresh bit of those it takes.
    // The salt differs between iterations. Old neighbors are sampled only from the row's own side
    // of the border; 0: no border.
    void draw(uint64_t* lists, uint32_t degree, uint32_t border, uint32_t salt,
              cudaStream_t stream);

    SampleView view() const;

  private:
    size_t count_;
    uint32_t samples_;
    uint32_t salt_ = 0;
    Buffer<uint32_t> fresh_forwards_, old_forwards_, fresh_backwards_, old_backwards_;
};

}  // namespace pgwarp::gpu
