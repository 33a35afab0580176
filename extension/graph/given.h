// Existing graphs that knn_graph_merge and knn_graph_append start from: their edges, matched with
// the rows of the tables.
#pragma once

#include "extension/graph/edge_file.h"
#include "extension/graph/parts.h"

namespace pgwarp {

struct GivenGraph {
    Oid graph;
    GraphEdges edges;
    uint32 neighbors;  // the largest rank
};
GivenGraph read_given_graph(Oid graph, KeyNames* names);
// The most edges of a given graph that stay in memory.
Size given_in_memory();

// An edge as row numbers; src or dst is no_row if its row is gone.
struct FoundEdge {
    uint32 src;
    uint32 dst;
    float distance;   // by the vectors of the rows
    bool as_written;  // about equal to the table's distance
};
// For a set in memory.
FoundEdge find_edge(const KeyedEdge& edge, const GraphSet& set, const KeyedRow* sorted);
// All edges of the graph for a set in memory, found by threads; null if they are in a file.
FoundEdge* find_edges(const GivenGraph& given, const GraphSet& set, const KeyedRow* sorted,
                      int threads);
// The same edges after rows have moved: (count), new numbers by the old ones.
void move_found(FoundEdge* found, Size count, const uint32* moved);

// Adds edges between rows [begin, end) to the lists, (count)(degree). Edges of rows that are gone
// are left out. Reports an error if most distances in the table are not those of the metric.
// `known`: by find_edges(), or null.
void load_given(const GivenGraph& given, const GraphSet& set, const KeyedRow* sorted, Size begin,
                Size end, uint32 degree, Edge* lists, const FoundEdge* known = nullptr);

// Rows whose lists in the graph are whole: as many edges as there can be, all to rows that still
// exist, with distances that are still right. Returns (count). `known`: as above.
bool* find_whole_rows(const GivenGraph& given, const GraphSet& set, const KeyedRow* sorted,
                      uint32 k, const FoundEdge* known);
// The same for a set in a file.
bool* find_whole_by_parts(const Parts& parts, const GivenGraph& given, const KeyedRow* sorted);

// Adds the edges of a given graph to the found lists (Parts::found), with distances by the vectors.
// The graph's rows are [begin, end), which are parts [first_part, end_part).
struct Side {
    const GivenGraph* given;
    const KeyedRow* sorted;
    Size first_part, end_part;
    Size begin, end;
};
void add_given(const Parts& parts, const Side& side);

// Merges the graphs of two sets that follow each other in a file; the second begins at row
// `border`.
void merge_by_parts(const GraphJob& job, const GraphSet& set, Size border, const GivenGraph* given,
                    const KeyedRow* sorted, const EdgeSink& sink);

}  // namespace pgwarp
