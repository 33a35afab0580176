// Larger sets out of a real one: a new row lies between two near neighbours of the real set, with
// noise of the size of the quantisation step, so that it is no exact mixture of the two.
#pragma once

#include <cstdint>
#include <vector>

#include "bench/dataset.h"

namespace pgwarp::bench {

class Generator {
  public:
    // step: noise is uniform in [-step, step]; 0: guess it (see quantisation_step).
    Generator(const Vectors& base, bool bytes, uint64_t seed, double step = 0);

    // Row `index` of the larger set: a row of the base as it is while there are some, then made
    // rows. Depends on the index and the seed alone, so a set of n rows begins every larger one.
    std::vector<float> row(size_t index) const;

    double step() const { return step_; }

  private:
    const Vectors& base_;
    bool bytes_;
    uint64_t seed_;
    double step_;
    size_t width_ = 0;
    std::vector<int32_t> near_;  // (row)(rank): near neighbours, -1 where a row has fewer
};

// 1 for bytes; the largest power of two (at most 1) of which all values are multiples, where there
// is one not below 2^-12; else 1/256 of the standard deviation, as if rows had been kept as bytes.
double quantisation_step(const Vectors& base, bool bytes);

}  // namespace pgwarp::bench
