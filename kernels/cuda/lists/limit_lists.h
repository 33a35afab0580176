// How many of its lists each query takes (kernels/list_plan.h), before they are scanned.
#pragma once

#include "kernels/cuda/base/stream.h"
#include "kernels/cuda/lists/filter.h"
#include "kernels/cuda/lists/scan_queries.h"

namespace pgwarp::gpu {

struct LimitedQueries {
    ListQuery* wanted;  // (count), on the device: probes are lowered
    uint32_t* taken;    // (count), in mapped host memory: the same numbers
};

// For queries with a threshold. The scan's queries have entry_starts and terms. `filter`: null
// where they have no conditions.
void limit_lists(const QueryScan& scan, const LimitedQueries& queries, const FilterView* filter,
                 const Context& context, Turn turn);

}  // namespace pgwarp::gpu
