// Progress of work on k-NN graphs, for the view pg_stat_progress_knn_graph.
//
// It travels as that of CREATE INDEX does, in the backend's status entry, under a number that no
// command of PostgreSQL's has: no shared memory of ours, and an error clears it.
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
    edges,    // of a graph that is read
    keys,     // that they tell rows apart
    opening,  // a device
};

// Ends with end_graph_progress(), or with the transaction. Does nothing inside a command that
// reports progress of its own.
void begin_graph_progress(Oid table);
void end_graph_progress();

// At DEBUG1: how long each stage took since the beginning.
void tell_graph_times(Oid table, Size rows);

void report_graph_stage(GraphStage stage, int64 done, int64 total);
// What the stages are of: so many graphs of parts and merges of two.
void report_graph_parts(int64 done, int64 total);

// For a builder. Calls nothing that can fail.
GraphProgress graph_progress();

}  // namespace pgwarp
