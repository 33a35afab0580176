// The edges of a graph, in memory or, beyond it, in a temporary file that is read through.
#pragma once

#include "kernels/graph_stream.h"
#include "extension/compat.h"
#include "extension/graph/table.h"

extern "C" {
#include "storage/buffile.h"
}

namespace pgwarp {

// All edges with the caller's rights.
struct GraphEdges {
    TableEdges edges;  // where they are `most` at most
    BufFile* file;     // otherwise: they are there, and `edges` is empty
    Size count;
};
GraphEdges read_graph_anywhere(Oid graph, Size most);
void end_graph_edges(GraphEdges* edges);

// The same edges with numbers of nodes in place of keys.
struct EdgeFile {
    BufFile* file;
    Size count;
};
EdgeFile new_edge_file();
void append_edges(EdgeFile* file, const NumberedEdge* edges, Size count);

constexpr Size edges_at_once = 8192;

// A file's edges as the table has them, some at a time.
struct KeyedEdge {
    int64 src;
    int64 dst;
    float distance;
    int32 rank;
};
static_assert(sizeof(KeyedEdge) == 24);
void read_keyed(BufFile* file, Size first, Size count, KeyedEdge* to);
// Up to edges_at_once from `first` on, wherever they are; one call goes on where the last ended, or
// begins at 0. How many these are.
Size next_edges(const GraphEdges& edges, Size first, KeyedEdge* to);
// Calls use(edge) for all of them. Interruptible.
template <typename Use>
void for_edges(const GraphEdges& edges, const Use& use) {
    auto* some = static_cast<KeyedEdge*>(palloc(sizeof(KeyedEdge) * edges_at_once));
    for (Size first = 0; first < edges.count;) {
        const Size count = next_edges(edges, first, some);
        for (Size i = 0; i < count; ++i) use(some[i]);
        first += count;
    }
    pfree(some);
}
void read_numbered(const EdgeFile& file, Size first, Size count, NumberedEdge* to);

}  // namespace pgwarp
