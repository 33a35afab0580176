// A graph's table in memory, for functions that need all of it at once.
#pragma once

#include "kernels/neighbor_graph.h"
#include "extension/compat.h"
#include "extension/guard.h"
#include "extension/table/key_names.h"

namespace pgwarp {

struct LoadedGraph {
    Oid table;
    Owned<NeighborGraph>* graph;
    KeyNames* names;
    int64* by_text;  // numbers of names in the order of their texts; null: keys are integers
    double least;    // distance
    bool finite;     // all distances
    double seconds_read;
    double seconds_made;
};

// Reads all edges with the caller's rights. Vertices are in the order of their keys, so that
// results do not depend on the order of rows in the table. Reports an error where the table is no
// graph, and where it does not fit into maintenance_work_mem.
LoadedGraph load_neighbor_graph(Oid table, KeyNames* names, RepeatedEdge repeated);

// The key of a vertex, for a result.
Datum vertex_key(const LoadedGraph& graph, Size vertex);

// Reports an error where `bytes` do not fit into maintenance_work_mem, beside the graph.
void check_graph_room(const LoadedGraph& graph, Size bytes);

// Report an error where a distance is negative; where one is infinite or no number.
void refuse_negative_distances(const LoadedGraph& graph);
void refuse_infinite_distances(const LoadedGraph& graph);

// For messages at DEBUG1.
double seconds_now();

}  // namespace pgwarp
