// Searches over libpq: how good their answers are, and how fast they come.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "bench/database.h"
#include "bench/options.h"
#include "bench/results.h"
#include "bench/vecs_file.h"

namespace pgwarp::bench {

// The questions, their true answers, and what they are asked with.
struct SearchTask {
    const Options& options;
    const SystemOptions& system;
    const Database& database;
    const Vectors& base;
    const Vectors& queries;
    const RowNumbers& truth;
};

// Each query once, shared out to as many clients as there are at most in the run.
Accuracy measure_accuracy(const SearchTask& task, const Settings& settings);

// `clients` connections, each asking its next query as soon as it has an answer.
Round measure_speed(const SearchTask& task, const Settings& settings, unsigned clients);

// The smallest step of the range whose recall is at least `target`, found by bisection, which
// takes recall to grow with the setting. False if the last step does not reach it.
bool find_cheapest(const SearchTask& task, const SettingsRange& range, double target, Point& point);

}  // namespace pgwarp::bench
