// A data set: rows to index, queries that are not among them, and a name for reports.
#pragma once

#include <string>

#include "bench/vectors.h"

namespace pgwarp::bench {

struct Dataset {
    std::string name;
    Vectors base;
    Vectors queries;
    bool bytes = false;  // all values are whole numbers 0..255, as in bvecs and idx files
};

struct DatasetRequest {
    // "fashion-mnist", or PREFIX for PREFIX_base.fvecs and PREFIX_query.fvecs (or .bvecs, .xz,
    // .gz), or a directory of idx files. A name without a slash is looked for in `directory`.
    std::string name;
    std::string directory = "build/data";
    size_t rows = 0;     // 0: all
    size_t queries = 0;  // 0: all
};

Dataset read_dataset(const DatasetRequest& request);

// Throws if files are missing, before any slow work starts.
void check_dataset(const DatasetRequest& request);

}  // namespace pgwarp::bench
