// Generates larger sets from a real one: a new row lies between two near neighbors of the real set,
// with noise of the size of the quantisation step, so that it is no exact interpolation.
#pragma once

#include <cstdint>
#include <vector>

#include "bench/dataset.h"
#include "bench/random.h"

namespace pgwarp::bench {

class Generator {
  public:
    // step: noise is uniform in [-step, step]; 0: guess it (see quantisation_step).
    Generator(const Vectors& base, bool bytes, uint64_t seed, double step = 0);

    // Row `index` of the larger set: first all rows of the base unchanged, then generated ones. It
    // depends on index and seed only, so that a set of n rows is a prefix of every larger one.
    std::vector<float> row(size_t index) const;

    // A row twice as long: one of the base beside a near one, each moved towards a near neighbor of
    // its own, with noise.
    std::vector<float> pair(size_t index) const;

    double step() const { return step_; }

  private:
    size_t near_of(size_t row, Random& random) const;
    // Appends a row that lies between this one and a near neighbor.
    void add_between(size_t from, Random& random, std::vector<float>& made) const;

    const Vectors& base_;
    bool bytes_;
    uint64_t seed_;
    double step_;
    size_t width_ = 0;
    std::vector<int32_t> near_;  // (row)(rank): near neighbors, padded with -1
};

// 1 for bytes. Else the largest power of two from 2^-12 to 1 of which all values are multiples. If
// there is none, 1/256 of the standard deviation, as if rows had been stored as bytes.
double quantisation_step(const Vectors& base, bool bytes);

}  // namespace pgwarp::bench
