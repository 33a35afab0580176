// The results of a run.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "bench/settings.h"

namespace pgwarp::bench {

struct BuildResult {
    double load_seconds = 0;
    std::vector<double> build_seconds;  // one per build
    int64_t table_bytes = 0;            // with TOAST, without indexes
    int64_t index_bytes = 0;
    std::string maintenance_work_mem;
    std::string parallel_workers;  // max_parallel_maintenance_workers

    double best_build() const {
        return build_seconds.empty()
                   ? 0
                   : *std::min_element(build_seconds.begin(), build_seconds.end());
    }
};

struct Accuracy {
    double recall = 0;
    size_t short_answers = 0;     // queries that got fewer than k rows
    size_t repeated_answers = 0;  // queries that got a row twice, which no index may do
    bool uses_index = false;      // by EXPLAIN
};

// One measurement of speed. Latencies in milliseconds.
struct Round {
    double queries_per_second = 0;
    double p50 = 0;
    double p95 = 0;
    double p99 = 0;
    std::optional<double> cpu;  // the backend's CPU time per query in ms, if known
};

struct Speed {
    unsigned clients = 0;
    std::vector<Round> rounds;

    // The round in the middle by queries/s (the slower of two).
    Round median() const {
        std::vector<Round> sorted = rounds;
        std::sort(sorted.begin(), sorted.end(), [](const Round& a, const Round& b) {
            return a.queries_per_second < b.queries_per_second;
        });
        return sorted.empty() ? Round{} : sorted[(sorted.size() - 1) / 2];
    }
    double best() const {
        double best = 0;
        for (const Round& round : rounds) best = std::max(best, round.queries_per_second);
        return best;
    }
};

struct Point {
    Settings settings;
    bool reach = false;  // found by --reach
    Accuracy accuracy;
    std::vector<Speed> speeds;  // one per number of clients
    std::string filter = {};    // the condition; empty: none
    double share = 1;           // of the rows that pass
};

// "tenth = 3: hnsw.ef_search=40"; the settings alone without a filter.
inline std::string describe(const Point& point) {
    return (point.filter.empty() ? "" : point.filter + ": ") + describe(point.settings);
}

// A range of --reach that does not reach the recall.
struct Missed {
    std::string filter;
    std::string best;  // the last settings of the range, and their recall
};

struct InsertResult {
    std::string commit;  // synchronous_commit
    size_t rows = 0;
    double rows_per_second = 0;
    double p50 = 0;  // ms
    double p99 = 0;
    std::optional<double> cpu;  // the backend's CPU time per row in ms, if known
};

struct SystemResult {
    std::string name;
    std::string error;  // why figures of this system are missing
    BuildResult build;
    std::vector<Point> points;
    std::vector<Missed> missed;
    std::vector<InsertResult> inserts;
};

}  // namespace pgwarp::bench
