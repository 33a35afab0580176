// Charts of the results, in SVG.
#pragma once

#include <ostream>
#include <vector>

#include "bench/report.h"
#include "bench/results.h"

namespace pgwarp::bench {

// Recall against queries/s: one panel for each number of clients, one line a system; right and up
// is better. Both charts leave out speeds that were not measured because the system failed.
void print_chart(std::ostream& out, const RunInfo& info, const std::vector<SystemResult>& results);

// Queries/s against the number of clients: one line for each combination of system and settings.
void print_clients_chart(std::ostream& out, const RunInfo& info,
                         const std::vector<SystemResult>& results);

// Recall, and queries/s for each number of clients, against the share of rows that pass: one line
// for each combination of system and settings, and one for the cheapest settings. Points without a
// filter are left out.
void print_filters_chart(std::ostream& out, const RunInfo& info,
                         const std::vector<SystemResult>& results);

// For the first two charts: each filter of a system is a system of its own. Without filters, the
// results as they are.
std::vector<SystemResult> split_by_filter(const std::vector<SystemResult>& results);

}  // namespace pgwarp::bench
