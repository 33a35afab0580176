// The one definition of recall.
#pragma once

#include <cstdint>
#include <span>

#include "bench/metric.h"
#include "bench/vectors.h"

namespace pgwarp::bench {

// How many of the first k returned rows are as near to the query as the k-th true neighbour, so
// that a tie at the k-th place does not count as a miss. A row returned twice counts once. `truth`
// holds the true neighbours, nearest first; if the base has fewer than k rows, so does it.
size_t count_hits(Metric metric, const Vectors& base, std::span<const float> query,
                  std::span<const int32_t> truth, std::span<const int32_t> returned, size_t k);

}  // namespace pgwarp::bench
