// Exact neighbors of a data set's queries, computed once and cached in a file.
#pragma once

#include <string>

#include "bench/dataset.h"
#include "bench/metric.h"
#include "bench/vecs_file.h"

namespace pgwarp::bench {

// A hash of base and queries, in hexadecimal.
std::string fingerprint(const Dataset& dataset);

// At least k neighbors per query (fewer only if the base has fewer rows). The file's name contains
// the fingerprint, so that a file is never used with other data.
RowNumbers ground_truth(Metric metric, const Dataset& dataset, size_t k,
                        const std::string& directory);

}  // namespace pgwarp::bench
