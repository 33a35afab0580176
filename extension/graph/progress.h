// Progress of work on k-NN graphs, for the view pg_stat_progress_knn_graph.
//
// As for CREATE INDEX, progress is in the backend's status entry, under a command number that
// PostgreSQL does not use. This needs no shared memory of our own, and an error clears it.
#pragma once

#include "kernels/knn_graph.h"
#include "extension/compat.h"

namespace pgwarp {

enum class GraphStage : int64 {
    reading = 1,  // rows of the table
    start,        // trees of NN-Descent
    descent,
    exact,
    distances,
    searching,  // by the index
    writing,
    edges,    // reading a given graph
    keys,     // restoring the table's order, checking that keys are unique
    opening,  // a device
};

// Ends with end_graph_progress(), or with the transaction. Does nothing inside a command that
// reports progress of its own.
void begin_graph_progress(Oid table);
void end_graph_progress();

// Reports at DEBUG1 how long each stage took since begin_graph_progress().
void report_graph_times(Oid table, Size rows);

void report_graph_stage(GraphStage stage, int64 done, int64 total);
// Graphs of parts and merges of two parts, done and in all.
void report_graph_parts(int64 done, int64 total);

// For GraphBuilder::progress. Calls nothing that reports an error.
GraphProgress graph_progress();

}  // namespace pgwarp
