// Exact neighbours of a data set's queries, computed once and kept in a file.
#pragma once

#include <string>

#include "bench/dataset.h"
#include "bench/metric.h"
#include "bench/vecs_file.h"

namespace pgwarp::bench {

// A hash of base and queries, in hexadecimal.
std::string fingerprint(const Dataset& dataset);

// At least k neighbours a query (fewer only if the base has fewer rows). The file's name carries
// the fingerprint, so a file never outlives the data it was made from.
RowNumbers ground_truth(Metric metric, const Dataset& dataset, size_t k,
                        const std::string& directory);

}  // namespace pgwarp::bench
