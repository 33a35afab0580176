// One graph to build: its options, its builder, and the sink for its edges.
#pragma once

#include "kernels/knn_graph.h"
#include "extension/compat.h"
#include "extension/graph/edge_writer.h"
#include "extension/graph/device.h"
#include "extension/graph/set.h"
#include "extension/graph/threads.h"

namespace pgwarp {

struct GraphJob {
    Metric metric;
    uint32 k;
    DescentOptions options;
    bool own_samples, own_iterations;  // set by the user
    int threads;
    GraphMaker maker;  // from start_builder()
};

// Opens job->maker for a graph of `count` rows. Closed by end_builder(), or with the current memory
// context.
void start_builder(GraphJob* job, Size count, uint32 dims, bool exact);
// The same, to compare this many pairs of values.
void start_builder_for(GraphJob* job, double values);
void end_builder(GraphJob* job);

Edge* alloc_lists(Size count, uint32 degree);

// Receives the neighbors of a row, nearest first: at most k.
struct EdgeSink {
    void (*put)(void* state, Size row, const Edge* edges, uint32 count);
    void (*expect)(void* state, Size edges);  // as that of an EdgeWriter
    void* state;
    // (rows): numbers of rows in the order in which put_lists() puts them; null: as they are.
    const uint32* order = nullptr;
};

// Passes the first k edges of each list, (count)(degree), to the sink.
void put_lists(const GraphJob& job, const Edge* lists, Size count, uint32 degree,
               const EdgeSink& sink);

// A sink for functions that return (src, rank, dst, distance).
struct EdgeRows {
    EdgeWriter* writer;
    const GraphSet* set;
};
EdgeSink rows_sink(EdgeRows* rows);

}  // namespace pgwarp
