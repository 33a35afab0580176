// Which neighbors of a row are introduced to each other in an iteration (section 4.1 of the paper):
// a fixed number of new and of old ones forwards, and of those that have it in their sample.
//
// Backwards a row has places for those that sample it, and a sampler the place that chance gives
// it; of several the one with the smallest number by chance stays. So no order in which they come
// changes anything, and an iteration repeats exactly.
#pragma once

#include "kernels/cuda/graph/rows.h"

namespace pgwarp::gpu {

struct SampleView {
    const uint32_t* fresh_forwards;  // (count)(samples), no_row behind the last
    const uint32_t* old_forwards;
    const uint32_t* fresh_backwards;  // (count)(places), scattered; no_index where there is none
    const uint32_t* old_backwards;
    uint32_t samples;
    uint32_t places;
    uint32_t salt;
};

class GraphSamples {
  public:
    GraphSamples(const Context& context, size_t count, uint32_t samples);

    static size_t row_bytes(uint32_t samples);

    // Marks what it takes of the lists, (count)(degree), as no longer fresh. The salt differs
    // between iterations. Old ones are on the row's own side of the border; 0: there is one side.
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
