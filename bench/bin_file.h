// fbin, f16bin, u8bin and i8bin, as big-ann-benchmarks and cuvs-bench have them: uint32 rows,
// uint32 dimensions, then the values of all rows, little-endian. Also .gz and .xz.
#pragma once

#include <limits>
#include <string>

#include "bench/vectors.h"

namespace pgwarp::bench {

// Whether the name ends as that of such a file.
bool is_bin(const std::string& path);

// Values become floats. At most `limit` rows.
Vectors read_bin(const std::string& path, size_t limit = std::numeric_limits<size_t>::max());

}  // namespace pgwarp::bench
