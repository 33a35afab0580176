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

// Whether a distance of the table is that of the vectors, up to what other machines add up
// differently.
bool about_equal(float a, float b);
// The distance as lists store it; the largest float where it overflows.
float finite_distance(Metric metric, const float* a, const float* b, uint32 dims);
// Edges looked at, and those whose distance in the table is not that of the vectors.
struct DistanceCheck {
    Size edges;
    Size others;
};
// Reports an error if these are most of them.
void check_distances(Oid graph, const DistanceCheck& looked);

// Adds edges between rows [begin, end) to the lists, (count)(degree). Edges of rows that are gone
// are left out. Reports an error if most distances in the table are not those of the metric.
void load_given(const GivenGraph& given, const GraphSet& set, const KeyedRow* sorted, Size begin,
                Size end, uint32 degree, Edge* lists);

// Rows of a set in a file whose lists in the graph are whole: as many edges as there can be, all to
// rows that still exist, with distances that are still right. Returns (count).
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
