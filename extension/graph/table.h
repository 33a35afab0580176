// Reading a graph from its table: columns src, rank, dst and distance, as knn_graph() gives them,
// or in the compact form src, neighbors and distances.
#pragma once

#include "extension/compat.h"
#include "extension/table/key_names.h"

extern "C" {
#include "miscadmin.h"
}

namespace pgwarp {

// Bytes that functions on graphs may take.
inline Size graph_memory() {
    return static_cast<Size>(maintenance_work_mem) * 1024;
}

// Whether the table has a row a source, with arrays of neighbors and distances by rank.
bool is_compact_graph(Oid graph);

// For the keys of a graph's edges: null where they are integers.
KeyNames* names_in_graph(Oid graph);
// The type to which queries cast keys of a column: uuid, text or int8.
const char* key_type_name(Oid table, const char* column);

// Allocated in the memory context that is current when the edges are read.
struct TableEdges {
    int64* src;
    int32* rank;
    int64* dst;
    float* distance;
    Size count;
};

// Grows by half at a time, in `context`.
struct GrowingEdges {
    TableEdges edges;
    Size room;
    MemoryContext context;
};
GrowingEdges new_growing_edges(Size room = 1024);
void append_edges(GrowingEdges* growing, const TableEdges& some);
// Frees the arrays, and clears the struct.
void free_edges(TableEdges* edges);

// Reports an error for a column that is missing or of another type.
void check_graph_table(Oid graph, const KeyNames* names);

// Gets up to edges_of_scan edges at a time, valid during the call. Its current memory context may
// be SPI's, which is freed at the end: allocate elsewhere.
struct EdgeUse {
    void (*use)(void* state, const TableEdges& some);
    void* state;
};
constexpr Size edges_of_scan = 16384;
// Reads all edges by a query: see scan_graph_table() in edge_scan.h.
void query_graph_table(Oid graph, KeyNames* names, const EdgeUse& use);
[[noreturn]] void report_null_edge(Oid graph);
// The longest of some lists, in SPI and with errors as above: lists of a graph mostly have the same
// length. 0: there are no edges.
uint32 first_neighbors(Oid graph, const KeyNames* names);

// Reads all edges of these sources into memory, or those of a rank. Errors as above, and where
// there are more than maintenance_work_mem has room for.
TableEdges read_graph_edges_of(Oid graph, KeyNames* names, const int64* sources, Size count,
                               uint32 rank = 0);

// An array of keys as a parameter of a query: of text where they have names, else of int8.
Datum key_array(const KeyNames* names, const int64* keys, Size count);

// Settings for queries that find lists by their keys, until AtEOXact_GUC() with the level this
// returns: by indexes, whatever is known of a table that is new.
int begin_keyed_queries();

// Edges that fit into maintenance_work_mem, with `bytes_beside` more for each.
Size most_graph_edges(Size bytes_beside);

// The table's quoted and qualified name, for a query.
char* qualified_name(Oid table);

}  // namespace pgwarp
