// The edges of a graph, in memory or, if they do not fit, in a temporary file that is read
// sequentially.
#pragma once

#include "kernels/graph_stream.h"
#include "extension/compat.h"
#include "extension/graph/table.h"

extern "C" {
#include "storage/buffile.h"
}

namespace pgwarp {

// All edges of a graph's table, read with the caller's rights.
struct GraphEdges {
    TableEdges edges;  // up to `most` edges; empty if there is a file
    BufFile* file;     // of KeyedEdge; null if they are in memory
    Size count;
};
GraphEdges read_graph_anywhere(Oid graph, KeyNames* names, Size most);
void end_graph_edges(GraphEdges* edges);

// Edges with node numbers in place of keys.
struct EdgeFile {
    BufFile* file;
    Size count;
};
EdgeFile new_edge_file();
void append_edges(EdgeFile* file, const NumberedEdge* edges, Size count);

constexpr Size edges_at_once = 8192;

// An edge as the table has it.
struct KeyedEdge {
    int64 src;
    int64 dst;
    float distance;
    int32 rank;
};
static_assert(sizeof(KeyedEdge) == 24);
void read_keyed(BufFile* file, Size first, Size count, KeyedEdge* to);
// Copies up to edges_at_once edges from `first` on, from memory or file, and returns their number.
// `first` is 0 or where the last call ended.
Size next_edges(const GraphEdges& edges, Size first, KeyedEdge* to);
// Calls use(edge) for all edges. Interruptible.
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
