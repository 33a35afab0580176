// Graphs that are given, to be merged or grown: their edges among rows that have been read.
#pragma once

#include "extension/edge_file.h"
#include "extension/graph_build.h"

namespace pgwarp {

struct GivenGraph {
    Oid graph;
    GraphEdges edges;
    uint32 neighbors;  // the largest rank
};
GivenGraph read_given_graph(Oid graph);
// Edges of one that stay in memory.
Size given_in_memory();

// An edge between two rows that are there, or with src or dst no_row.
struct FoundEdge {
    uint32 src;
    uint32 dst;
    float distance;  // of the rows as they are
    bool as_written;
};
// Of a set in memory.
FoundEdge find_edge(const KeyedEdge& edge, const GraphSet& set, const KeyedRow* sorted);

// Puts edges between rows [begin, end) into their lists. Edges of rows that are gone stay out. Most
// distances in the table must be those of the metric.
void load_given(const GivenGraph& given, const GraphSet& set, const KeyedRow* sorted, Size begin,
                Size end, uint32 degree, Edge* lists);

// The graph of two sets that are one behind the other in a file, the second from row `border` on,
// from the graph of each.
void merge_by_parts(const GraphJob& job, const GraphSet& set, Size border, const GivenGraph* given,
                    const KeyedRow* sorted, const EdgeSink& sink);

}  // namespace pgwarp
