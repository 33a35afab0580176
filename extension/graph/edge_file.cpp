#include <algorithm>

#include "extension/graph/edge_file.h"
#include "extension/graph/edge_scan.h"

extern "C" {
#include "utils/memutils.h"
}

namespace pgwarp {

namespace {

void write_keyed(BufFile* file, const TableEdges& edges) {
    KeyedEdge some[512];
    for (Size first = 0; first < edges.count; first += lengthof(some)) {
        const Size count = std::min<Size>(lengthof(some), edges.count - first);
        for (Size i = 0; i < count; ++i)
            some[i] = {edges.src[first + i], edges.dst[first + i], edges.distance[first + i],
                       edges.rank[first + i]};
        compat_write_temporary(file, some, count * sizeof(KeyedEdge));
    }
}

struct Spilling {
    GraphEdges* to;
    GrowingEdges growing;
    Size most;
};

void take_edges(void* state, const TableEdges& some) {
    Spilling* spilling = static_cast<Spilling*>(state);
    GraphEdges* to = spilling->to;
    if (!to->file && to->count + some.count > spilling->most) {
        const MemoryContext before = MemoryContextSwitchTo(spilling->growing.context);
        to->file = BufFileCreateTemp(false);
        MemoryContextSwitchTo(before);
        write_keyed(to->file, spilling->growing.edges);
        free_edges(&spilling->growing.edges);
    }
    if (to->file)
        write_keyed(to->file, some);
    else
        append_edges(&spilling->growing, some);
    to->count += some.count;
}

void seek(BufFile* file, Size offset) {
    if (BufFileSeek(file, 0, static_cast<off_t>(offset), SEEK_SET) != 0)
        ereport(ERROR, (errcode_for_file_access(), errmsg("could not read temporary file")));
}

}  // namespace

GraphEdges read_graph_anywhere(Oid graph, KeyNames* names, Size most) {
    GraphEdges edges = {};
    Spilling spilling = {&edges, new_growing_edges(), most};
    scan_graph_table(graph, names, {take_edges, &spilling});
    edges.edges = spilling.growing.edges;
    return edges;
}

void end_graph_edges(GraphEdges* edges) {
    if (edges->file)
        BufFileClose(edges->file);
    else
        free_edges(&edges->edges);
    *edges = {};
}

Size next_edges(const GraphEdges& edges, Size first, KeyedEdge* to) {
    const Size count = std::min(edges_at_once, edges.count - first);
    if (edges.file) {
        read_keyed(edges.file, first, count, to);
        return count;
    }
    CHECK_FOR_INTERRUPTS();
    const TableEdges& from = edges.edges;
    for (Size i = 0; i < count; ++i)
        to[i] = {from.src[first + i], from.dst[first + i], from.distance[first + i],
                 from.rank[first + i]};
    return count;
}

EdgeFile new_edge_file() {
    return {BufFileCreateTemp(false), 0};
}

void append_edges(EdgeFile* file, const NumberedEdge* edges, Size count) {
    compat_write_temporary(file->file, edges, count * sizeof(NumberedEdge));
    file->count += count;
}

void read_keyed(BufFile* file, Size first, Size count, KeyedEdge* to) {
    CHECK_FOR_INTERRUPTS();
    if (first == 0) seek(file, 0);
    compat_read_temporary(file, to, count * sizeof(KeyedEdge));
}

void read_numbered(const EdgeFile& file, Size first, Size count, NumberedEdge* to) {
    CHECK_FOR_INTERRUPTS();
    if (first == 0) seek(file.file, 0);
    compat_read_temporary(file.file, to, count * sizeof(NumberedEdge));
}

}  // namespace pgwarp
