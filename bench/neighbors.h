// Exact nearest neighbors by brute force.
#pragma once

#include "bench/metric.h"
#include "bench/vecs_file.h"
#include "bench/vectors.h"

namespace pgwarp::bench {

// For each query the k nearest rows of the base (all rows if it has fewer), nearest first; ties by
// row number.
RowNumbers exact_neighbors(Metric metric, const Vectors& base, const Vectors& queries, size_t k,
                           unsigned threads);

}  // namespace pgwarp::bench
