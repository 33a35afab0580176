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

}  // namespace pgwarp::bench
