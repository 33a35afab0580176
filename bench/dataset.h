// A data set: rows to index, queries that are not among them, and a name for reports.
#pragma once

#include <string>

#include "bench/metric.h"
#include "bench/vectors.h"

namespace pgwarp::bench {

struct Dataset {
    std::string name;
    Vectors base;
    Vectors queries;
    bool bytes = false;  // all values are whole numbers 0..255, as in bvecs, u8bin and idx files
};

struct DatasetRequest {
    // "fashion-mnist"; PREFIX for PREFIX_base.fvecs and PREFIX_query.fvecs (or .bvecs, .fbin,
    // .f16bin, .u8bin, .i8bin, each also .xz and .gz), or with a dot for the underscore; a
    // directory of base.fbin and query.fbin (or base.1B.u8bin and the like), or of idx files; NAME
    // or NAME.hdf5 for a file of ann-benchmarks. A name without a slash is looked for in
    // `directory`.
    std::string name;
    std::string directory = "build/data";
    size_t rows = 0;     // 0: all
    size_t queries = 0;  // 0: all
};

Dataset read_dataset(const DatasetRequest& request);

// Throws if files are missing, before any slow work starts.
void check_dataset(const DatasetRequest& request);

// The metric that the data is for, if its files say so, as those of ann-benchmarks do; else L2.
Metric metric_of(const DatasetRequest& request);

}  // namespace pgwarp::bench
