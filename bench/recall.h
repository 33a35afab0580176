// The one definition of recall.
#pragma once

#include <cstdint>
#include <span>

#include "bench/metric.h"
#include "bench/vectors.h"

namespace pgwarp::bench {

// The number of the first k returned rows that are as near to the query as the k-th true neighbor,
// so that a tie at the k-th place is no miss. A row returned twice counts once. `truth`: the true
// neighbors, nearest first; fewer than k if the base has fewer rows.
size_t count_hits(Metric metric, const Vectors& base, std::span<const float> query,
                  std::span<const int32_t> truth, std::span<const int32_t> returned, size_t k);

}  // namespace pgwarp::bench
