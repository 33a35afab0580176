// Graphs that are given, to be merged or grown: their edges among rows that have been read.
#pragma once

#include "extension/graph/edge_file.h"
#include "extension/graph/parts.h"

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

// Which rows have the list that the graph should have of them: as many edges as there can be, all
// to rows that are still there, at distances that are still right. (count).
bool* find_whole_rows(const GivenGraph& given, const GraphSet& set, const KeyedRow* sorted,
                      uint32 k);
// The same of a set in a file.
bool* find_whole_by_parts(const Parts& parts, const GivenGraph& given, const KeyedRow* sorted);

// Puts edges of rows in a file into what is found, with the distances of these rows. Between parts
// [first_part, end_part), which have rows [begin, end).
struct Side {
    const GivenGraph* given;
    const KeyedRow* sorted;
    Size first_part, end_part;
    Size begin, end;
};
void add_given(const Parts& parts, const Side& side);

// The graph of two sets that are one behind the other in a file, the second from row `border` on,
// from the graph of each.
void merge_by_parts(const GraphJob& job, const GraphSet& set, Size border, const GivenGraph* given,
                    const KeyedRow* sorted, const EdgeSink& sink);

}  // namespace pgwarp
