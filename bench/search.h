// Measures recall and speed of searches over libpq.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "bench/database.h"
#include "bench/options.h"
#include "bench/results.h"
#include "bench/truth.h"

namespace pgwarp::bench {

// Queries, their true neighbors and filter, and the system to measure.
struct SearchTask {
    const Options& options;
    const SystemOptions& system;
    const Database& database;
    const Vectors& base;
    const Vectors& queries;
    const Truth& truth;
};

// Runs each query once, distributed over the run's largest number of clients.
Accuracy measure_accuracy(const SearchTask& task, const Settings& settings);

// A point without speeds.
Point measure_point(const SearchTask& task, const Settings& settings, bool reach);

// `clients` connections, each sending its next query as soon as it has an answer.
Round measure_speed(const SearchTask& task, const Settings& settings, unsigned clients);

// Finds the smallest step of the range whose recall is at least `target`, by bisection: recall must
// grow with the setting. False if the last step does not reach it.
bool find_cheapest(const SearchTask& task, const SettingsRange& range, double target, Point& point);

}  // namespace pgwarp::bench
