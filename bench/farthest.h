// Labels for a condition that holds far from the query only.
#pragma once

#include <cstdint>
#include <vector>

#include "bench/metric.h"
#include "bench/vectors.h"

namespace pgwarp::bench {

// For each row the number of a query that has it among its farthest `share` of all rows; -1: none
// has. Far from many queries are often the same rows, and a row has one label. So the rows of a
// query are a part of its farthest, about as many as other queries get.
std::vector<int32_t> farthest_labels(Metric metric, const Vectors& base, const Vectors& queries,
                                     double share, unsigned threads);

}  // namespace pgwarp::bench
