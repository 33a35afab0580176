// The scan of filtered queries, query by query: entries that pass the conditions and come after the
// floor. A tile of which no entry passes costs the loads of its attributes alone.
#pragma once

#include "kernels/cuda/lists/filter.h"
#include "kernels/cuda/lists/scan_queries.h"

namespace pgwarp::gpu {

// Also counts `passed` and `beyond`. `scan` has tables, and the counts of its candidates are zero.
void scan_filtered(const QueryScan& scan, const FilterView& filter, const Context& context,
                   cudaStream_t stream);

}  // namespace pgwarp::gpu
