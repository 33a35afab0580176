// Options of a run. Command line and config file have the same options.
#pragma once

#include <string>
#include <vector>

#include "bench/dataset.h"
#include "bench/filter.h"
#include "bench/metric.h"
#include "bench/settings.h"

namespace pgwarp::bench {

// One index to measure: its extension, how its table and index are made, and the settings to try.
struct SystemOptions {
    std::string name;
    std::string extension = "pgwarp";
    std::string type = "vector";     // of the column: or halfvec
    std::vector<std::string> setup;  // SQL after CREATE TABLE
    bool primary_key = false;
    Settings build_settings;
    std::string index;  // SQL; empty: no index, an exact scan
    std::string query;  // SQL; empty: the plain one
    std::vector<Settings> sets;
    std::vector<SettingsRange> reaches;
};

struct Options {
    std::string connection;
    DatasetRequest data;
    Metric metric = Metric::l2;
    bool metric_given = false;  // else the data's own
    size_t k = 10;
    size_t queries = 1000;
    std::vector<unsigned> clients = {1};
    double seconds = 5;
    size_t repeat = 3;
    size_t builds = 1;
    double recall = 0.95;
    size_t inserts = 0;
    std::vector<std::string> commits = {"off"};  // values of synchronous_commit
    double farthest = 0;                         // share of rows; 0: no column "far"
    std::vector<Filter> filters;                 // empty: queries without a condition
    bool keep = false;
    std::string json_path;
    std::string svg_path;
    std::string clients_svg_path;
    std::string filters_svg_path;
    std::vector<std::string> earlier_paths;  // --from-json
    std::vector<SystemOptions> systems;      // empty: only draws earlier results
};

extern const char* const usage;

// Throws on anything it does not understand.
Options parse_options(const std::vector<std::string>& arguments);

}  // namespace pgwarp::bench
