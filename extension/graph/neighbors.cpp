#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/neighbor_graph.h"
#include "extension/graph/job.h"
#include "extension/graph/neighbors.h"
#include "extension/graph/edge_scan.h"
#include "extension/graph/table.h"

extern "C" {
#include "portability/instr_time.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"
}

namespace pgwarp {

namespace {

void report_too_large(Oid table, const char* detail) {
    ereport(ERROR,
            (errcode(ERRCODE_PROGRAM_LIMIT_EXCEEDED),
             errmsg("graph \"%s\" does not fit into maintenance_work_mem", get_rel_name(table)),
             errdetail("%s", detail), errhint("Increase maintenance_work_mem.")));
}

// State of take_edges(): all edges, in memory.
struct Reading {
    GrowingEdges growing;
    Oid table;
    Size most;
};

void take_edges(void* state, const TableEdges& some) {
    Reading* reading = static_cast<Reading*>(state);
    if (reading->growing.edges.count + some.count > reading->most)
        report_too_large(reading->table, psprintf("There is room for %zu edges.", reading->most));
    append_edges(&reading->growing, some);
}

int64* alloc_numbers(Size count) {
    return static_cast<int64*>(
        MemoryContextAllocHuge(CurrentMemoryContext, std::max<Size>(count, 1) * sizeof(int64)));
}

// Names have numbers in the order in which they were met. Replaces these by their rank in the order
// of texts, and returns the number of each rank.
int64* rank_names(const KeyNames* names, TableEdges* edges) {
    int64 most = -1;
    for (Size i = 0; i < edges->count; ++i) most = std::max({most, edges->src[i], edges->dst[i]});
    const Size count = static_cast<Size>(most + 1);
    int64* by_text = alloc_numbers(count);
    int64* ranks = alloc_numbers(count);
    for (Size i = 0; i < count; ++i) by_text[i] = static_cast<int64>(i);
    std::sort(by_text, by_text + count,
              [names](int64 a, int64 b) { return key_is_less(names, a, b); });
    CHECK_FOR_INTERRUPTS();
    for (Size i = 0; i < count; ++i) ranks[by_text[i]] = static_cast<int64>(i);
    for (Size i = 0; i < edges->count; ++i) {
        edges->src[i] = ranks[edges->src[i]];
        edges->dst[i] = ranks[edges->dst[i]];
    }
    pfree(ranks);
    return by_text;
}

}  // namespace

double seconds_now() {
    instr_time now;
    INSTR_TIME_SET_CURRENT(now);
    return INSTR_TIME_GET_DOUBLE(now);
}

LoadedGraph load_neighbor_graph(Oid table, KeyNames* names, RepeatedEdge repeated) {
    LoadedGraph loaded = {};
    loaded.table = table;
    loaded.names = names;
    const double begun = seconds_now();
    Reading reading = {new_growing_edges(), table, most_graph_edges(NeighborGraph::memory(0, 1))};
    scan_graph_table(table, names, {take_edges, &reading});
    TableEdges* edges = &reading.growing.edges;
    if (names) loaded.by_text = rank_names(names, edges);
    loaded.least = std::numeric_limits<double>::infinity();
    loaded.finite = true;
    for (Size i = 0; i < edges->count; ++i) {
        loaded.least = std::min<double>(loaded.least, edges->distance[i]);
        loaded.finite = loaded.finite && std::isfinite(edges->distance[i]);
    }
    loaded.seconds_read = seconds_now() - begun;
    loaded.graph = owned_by<NeighborGraph>(CurrentMemoryContext);
    guarded_interruptibly([&] {
        // PostgreSQL's int64 and std::int64_t may be different types of 64 bits.
        static_assert(sizeof(int64) == sizeof(int64_t));
        const KeyedEdges given = {reinterpret_cast<const int64_t*>(edges->src),
                                  reinterpret_cast<const int64_t*>(edges->dst), edges->distance,
                                  edges->count};
        Workers workers(graph_threads(), query_interrupts());
        loaded.graph->object =
            new NeighborGraph(make_neighbor_graph(workers, given, repeated, query_interrupts()));
    });
    free_edges(edges);
    loaded.seconds_made = seconds_now() - begun - loaded.seconds_read;
    return loaded;
}

Datum vertex_key(const LoadedGraph& graph, Size vertex) {
    const int64 key = graph.graph->object->keys[vertex];
    return key_datum(graph.names, graph.by_text ? graph.by_text[key] : key);
}

void check_graph_room(const LoadedGraph& graph, Size bytes) {
    const NeighborGraph& made = *graph.graph->object;
    const Size needed = bytes + made.links.size() * sizeof(NeighborLink) +
                        made.vertices() * (sizeof(int64) + sizeof(uint64));
    if (needed > graph_memory())
        report_too_large(graph.table,
                         psprintf("Its %zu vertices and %zu edges need %zu MB.", made.vertices(),
                                  made.links.size() / 2, needed / (1024 * 1024) + 1));
}

void refuse_negative_distances(const LoadedGraph& graph) {
    if (graph.least < 0)
        ereport(ERROR, (errcode(ERRCODE_INVALID_PARAMETER_VALUE),
                        errmsg("graph \"%s\" has a negative distance", get_rel_name(graph.table)),
                        errdetail("The least is %g.", graph.least),
                        errhint("A graph by inner_product has no distances. Make one by l2, l1 or "
                                "cosine.")));
}

void refuse_infinite_distances(const LoadedGraph& graph) {
    if (!graph.finite)
        ereport(ERROR, (errcode(ERRCODE_INVALID_PARAMETER_VALUE),
                        errmsg("graph \"%s\" has a weight that is not finite",
                               get_rel_name(graph.table))));
}

}  // namespace pgwarp
