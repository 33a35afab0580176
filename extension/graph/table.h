// Reading a graph from its table: columns src, rank, dst and distance, as knn_graph() gives them.
#pragma once

#include "extension/compat.h"

namespace pgwarp {

// In memory of the context that is current when it is read.
struct TableEdges {
    int64* src;
    int32* rank;
    int64* dst;
    float* distance;
    Size count;
};

// Grows by half.
struct GrowingEdges {
    TableEdges edges;
    Size room;
    MemoryContext context;
};
GrowingEdges new_growing_edges();
void append_edges(GrowingEdges* growing, const TableEdges& some);
// Frees what is there, and leaves nothing.
void free_edges(TableEdges* edges);

// Calls use(state, some) with all edges, some at a time, which are gone afterwards. They are read
// with the caller's rights. Reports an error: a column that is missing or of another type, a null.
// The memory context that is current then is gone afterwards, too.
struct EdgeUse {
    void (*use)(void* state, const TableEdges& some);
    void* state;
};
void scan_graph_table(Oid graph, const EdgeUse& use);

// Reads all edges with the caller's rights, or reports an error: a column that is missing or of
// another type, a null, or more edges than `most`, for which maintenance_work_mem has no room.
TableEdges read_graph_table(Oid graph, Size most);

// The same for some sources only, which are sorted.
TableEdges read_graph_edges_of(Oid graph, const int64* sources, Size count);

// Edges that maintenance_work_mem has room for, with so many bytes for each beside these.
Size most_graph_edges(Size bytes_beside);

// The table's name for a query.
char* qualified_name(Oid table);

}  // namespace pgwarp
