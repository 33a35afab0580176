// Kernels of graphs, run by threads of this backend.
#pragma once

#include "kernels/workers.h"
#include "extension/compat.h"
#include "extension/guard.h"

extern "C" {
#include "miscadmin.h"
}

namespace pgwarp {

// As in a build's training: one thread for each process of a maintenance command.
inline int graph_threads() {
    return 1 + max_parallel_maintenance_workers;
}

// Runs kernels that may throw Interrupted. Their output is then lost, so the statement is canceled.
template <typename Function>
void run_graph_kernel(Function&& function) {
    if (guarded_until_interrupt(function)) return;
    CHECK_FOR_INTERRUPTS();
    ereport(ERROR, (errcode(ERRCODE_QUERY_CANCELED), errmsg("canceling statement")));
}

}  // namespace pgwarp
