// Prints results as tables for readers and as JSON lines for programs.
#pragma once

#include <ostream>
#include <string>
#include <vector>

#include "bench/results.h"

namespace pgwarp::bench {

// Data, parameters and server of a run.
struct RunInfo {
    std::string data;
    size_t rows = 0;
    size_t dims = 0;
    size_t queries = 0;
    std::string metric;
    size_t k = 0;
    double recall_target = 0;
    double seconds = 0;
    size_t repeat = 0;
    std::string server_version;
    Settings server_settings;
};

void print_tables(std::ostream& out, const RunInfo& info, const std::vector<SystemResult>& results);

// One object a line: "kind" is run, build, search, unreached or insert.
void print_json(std::ostream& out, const RunInfo& info, const std::vector<SystemResult>& results);

}  // namespace pgwarp::bench
