// Reading a graph from its table: columns src, rank, dst and distance, as knn_graph() gives them.
#pragma once

#include "extension/compat.h"

namespace pgwarp {

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
GrowingEdges new_growing_edges();
void append_edges(GrowingEdges* growing, const TableEdges& some);
// Frees the arrays, and clears the struct.
void free_edges(TableEdges* edges);

// Reads all edges with the caller's rights, and calls use(state, some) with up to 10,000 at a
// time, valid during the call. Its current memory context is SPI's, which is freed at the end:
// allocate elsewhere. Reports an error for a column that is missing or of another type, and for a
// null.
struct EdgeUse {
    void (*use)(void* state, const TableEdges& some);
    void* state;
};
void scan_graph_table(Oid graph, const EdgeUse& use);

// Reads all edges into memory. Errors as above, and for more than `most` edges, for which
// maintenance_work_mem has no room.
TableEdges read_graph_table(Oid graph, Size most);

// The same for edges of these sources only.
TableEdges read_graph_edges_of(Oid graph, const int64* sources, Size count);

// Edges that fit into maintenance_work_mem, with `bytes_beside` more for each.
Size most_graph_edges(Size bytes_beside);

// The table's quoted and qualified name, for a query.
char* qualified_name(Oid table);

}  // namespace pgwarp
