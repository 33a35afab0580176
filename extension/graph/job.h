// One graph to be made: what was asked for, who makes it, and where its edges go.
#pragma once

#include "kernels/knn_graph.h"
#include "extension/compat.h"
#include "extension/graph/edge_writer.h"
#include "extension/graph/device.h"
#include "extension/graph/set.h"
#include "extension/guard.h"

namespace pgwarp {

struct GraphJob {
    GraphMetric metric;
    uint32 k;
    DescentOptions options;
    bool own_samples, own_iterations;  // the user's
    int threads;
    GraphMaker maker;  // from start_builder()
};

// As a build trains: the cores that maintenance may have.
int graph_threads();

// For a graph of so many rows. Ends with end_builder(), or with the current memory context.
void start_builder(GraphJob* job, Size count, uint32 dims, bool exact);
void end_builder(GraphJob* job);

// Runs kernels that end with Interrupted; what they were to write is lost then, and so is the
// query.
template <typename Function>
void run_graph_kernel(Function&& function) {
    bool interrupted = false;
    guarded([&] {
        try {
            function();
        } catch (const Interrupted&) {
            interrupted = true;
        }
    });
    if (!interrupted) return;
    CHECK_FOR_INTERRUPTS();
    ereport(ERROR, (errcode(ERRCODE_QUERY_CANCELED), errmsg("canceling statement")));
}

Edge* alloc_lists(Size count, uint32 degree);

// Takes the first k edges of a row, nearest first, up to the first no_row.
struct EdgeSink {
    void (*put)(void* state, Size row, const Edge* edges, uint32 count);
    void* state;
};

// Hands over lists of (count)(degree) whose first k places are wanted.
void put_lists(const GraphJob& job, const Edge* lists, Size count, uint32 degree,
               const EdgeSink& sink);

// A sink for functions that return (src, rank, dst, distance).
struct EdgeRows {
    EdgeWriter* writer;
    const GraphSet* set;
};
EdgeSink rows_sink(EdgeRows* rows);

}  // namespace pgwarp
