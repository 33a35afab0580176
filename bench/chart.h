// The results as pictures in SVG.
#pragma once

#include <ostream>
#include <vector>

#include "bench/report.h"
#include "bench/results.h"

namespace pgwarp::bench {

// Recall against queries/s: one panel for each number of clients, one line a system; right and up
// is better. Speeds that were not measured, since their system failed, are left out of both charts.
void print_chart(std::ostream& out, const RunInfo& info, const std::vector<SystemResult>& results);

// Queries/s against the number of clients: one line for each settings of each system.
void print_clients_chart(std::ostream& out, const RunInfo& info,
                         const std::vector<SystemResult>& results);

}  // namespace pgwarp::bench
