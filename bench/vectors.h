// A set of vectors in memory: readers return it, measurements take it.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

namespace pgwarp::bench {

struct Vectors {
    size_t rows = 0;
    size_t dims = 0;
    std::vector<float> values;  // (row)(dimension)

    std::span<const float> row(size_t index) const { return {values.data() + index * dims, dims}; }

    // Keeps the first rows only.
    void truncate(size_t count) {
        if (count >= rows) return;
        rows = count;
        values.resize(rows * dims);
    }
};

}  // namespace pgwarp::bench
