// The files of ann-benchmarks: HDF5 with the data sets "train" and "test", (row)(dimension), and
// the metric as the attribute "distance". Without libhdf5 at compile time, all of these throw and
// say so.
#pragma once

#include <limits>
#include <string>

#include "bench/metric.h"
#include "bench/vectors.h"

namespace pgwarp::bench {

// The rows of a data set of the file, whatever their element type. At most `limit` rows.
Vectors read_hdf5(const std::string& path, const std::string& name,
                  size_t limit = std::numeric_limits<size_t>::max());

// Throws for distances that no index has, such as jaccard.
Metric read_hdf5_metric(const std::string& path);

}  // namespace pgwarp::bench
