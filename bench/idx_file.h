// The idx format of MNIST and similar sets: a magic number that encodes type and rank, the sizes of
// the dimensions (all big-endian), then the values. An image becomes a row of floats 0..255.
#pragma once

#include <limits>
#include <string>

#include "bench/vectors.h"

namespace pgwarp::bench {

Vectors read_idx_images(const std::string& path, size_t limit = std::numeric_limits<size_t>::max());

}  // namespace pgwarp::bench
