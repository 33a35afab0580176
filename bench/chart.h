// The recall/speed curve as SVG.
#pragma once

#include <ostream>
#include <vector>

#include "bench/report.h"
#include "bench/results.h"

namespace pgwarp::bench {

// One panel for each number of clients, one line a system; right and up is better.
void print_chart(std::ostream& out, const RunInfo& info, const std::vector<SystemResult>& results);

}  // namespace pgwarp::bench
