// Lower bounds of the distances between all rows, from vectors of fewer dimensions.
//
// Rows are projected on their strongest principal directions. The length of what a projection drops
// is one more dimension: by the inequality of Cauchy and Schwarz, a product of two such vectors is
// at least the product of the rows. So most pairs are rejected by short products; the few others
// need the rows themselves. Directions are computed from a sample: good ones reject more pairs, but
// any are correct.
#pragma once

#include "kernels/cpu/pair_directions.h"
#include "kernels/similar_pairs.h"
#include "kernels/workers.h"

#include <vector>

namespace pgwarp {

// For rows a and b: distance >= low[a] + low[b] + factor * <vector a, vector b>, or, without
// products (L1), low is zero and `factor` is that of the sum of differences. Holds for distances as
// graph_distance() rounds them. A bound that overflows may be NaN, which bounds nothing.
struct PairFilter {
    const float* vectors;  // (count)(dims): `reduced`, or the rows themselves
    uint32_t dims;
    float factor;
    std::vector<float> low;
    std::vector<float> reduced;

    const float* vector(size_t row) const { return vectors + row * dims; }
};

struct PairPlan {
    uint32_t width;  // dimensions of the vectors, one of them for the dropped length; 0: the rows
    PairDirections directions;  // at least width - 1
};

// The filter by a plan; by the rows themselves where those are too large for it.
PairFilter make_pair_filter(Workers& workers, const GraphRows& rows, const PairPlan& plan);
// With the rows themselves.
PairFilter make_plain_filter(Workers& workers, const GraphRows& rows);

// By the search's plan, or one that is made for these rows alone.
PairFilter make_pair_filter(Workers& workers, const GraphRows& rows, const PairSearch& search);

}  // namespace pgwarp
