// Draws the neighbors of a row that are compared with each other in an iteration (section 4.1 of
// the paper): a fixed number of new and of old neighbors, forward and reverse.
#pragma once

#include "kernels/knn_graph.h"
#include "kernels/workers.h"

#include <vector>

namespace pgwarp {

// How many of each kind to draw. Old neighbors are on the row's own side of the border; 0: no
// border.
struct SampleKinds {
    uint32_t fresh_rows;
    uint32_t old_rows;
    size_t border;
};

class GraphSamples {
  public:
    // `samples` is at least both counts of SampleKinds.
    GraphSamples(size_t count, uint32_t samples);

    static size_t memory(size_t count, uint32_t samples);

    // Clears the fresh flag of neighbors it samples from the lists, (count)(degree). `seed` differs
    // between iterations.
    void draw(Workers& workers, const SampleKinds& kinds, Edge* lists, uint32_t degree,
              uint64_t seed);

    // The new and the old samples of a row, each sorted and without duplicates; none is in both.
    // `fresh_rows` and `old_rows` have room for 2 * samples.
    struct Counts {
        size_t fresh_rows;
        size_t old_rows;
    };
    Counts of(size_t row, uint32_t* fresh_rows, uint32_t* old_rows) const;

  private:
    // (count)(samples) rows; counts[row] of them are valid.
    struct Side {
        std::vector<uint32_t> rows;
        std::vector<uint32_t> counts;
    };
    void draw_forwards(Workers& workers, const SampleKinds& kinds, Edge* lists, uint32_t degree);
    void draw_backwards(Workers& workers, const Side& forwards, uint64_t seed, Side& backwards);

    size_t count_;
    uint32_t samples_;
    Side fresh_forwards_, old_forwards_, fresh_backwards_, old_backwards_;
};

}  // namespace pgwarp
