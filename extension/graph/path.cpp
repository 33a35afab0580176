// knn_path and knn_components: paths through a graph that is in a table.
//
// The graph is in memory if it fits into maintenance_work_mem. Otherwise only its nodes are, and
// the edges are in a temporary file, first with keys, then with node numbers. Searches then read
// the file as many times as they need.

#include <algorithm>
#include <utility>

#include "kernels/graph_paths.h"
#include "kernels/graph_stream.h"
#include "extension/graph/edge_file.h"
#include "extension/graph/table.h"
#include "extension/guard.h"
#include "extension/util/signature.h"

extern "C" {
#include "utils/builtins.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"
}

namespace pgwarp {

namespace {

Owned<PathGraph>* load_graph(TableEdges* edges, bool directed) {
    Owned<PathGraph>* graph = owned_by<PathGraph>(CurrentMemoryContext);
    guarded_interruptibly([&] {
        // PostgreSQL's int64 and std::int64_t may be different types of 64 bits.
        static_assert(sizeof(int64) == sizeof(int64_t));
        graph->object = new PathGraph(
            {reinterpret_cast<const int64_t*>(edges->src),
             reinterpret_cast<const int64_t*>(edges->dst), edges->distance, edges->count},
            directed, query_interrupts());
    });
    free_edges(edges);
    return graph;
}

void check_node(bool there, Oid table, const char* node) {
    if (!there)
        ereport(ERROR, (errcode(ERRCODE_INVALID_PARAMETER_VALUE),
                        errmsg("graph \"%s\" has no node %s", get_rel_name(table), node)));
}

// The ends of a path; a name that no edge has is not known.
int64 node_argument(FunctionCallInfo fcinfo, int number, Oid table, const KeyNames* names) {
    if (!names) return PG_GETARG_INT64(number);
    const text* name = PG_GETARG_TEXT_PP(number);
    const int64 node = find_key_name(names, name);
    check_node(node >= 0, table, text_to_cstring(name));
    return node;
}

// A kernel's result, owned by a memory context.
template <typename T>
struct Copied {
    T* items;
    Size count;
};

template <typename T, typename Function>
Copied<T> copied(Function&& function) {
    Owned<std::vector<T>>* found = owned_by<std::vector<T>>(CurrentMemoryContext);
    guarded_interruptibly([&] {
        delete found->object;
        found->object = nullptr;
        found->object = new std::vector<T>(function());
    });
    return {found->object->data(), found->object->size()};
}

Copied<PathStep> path_in_memory(Oid table, TableEdges* edges, bool directed, int64 from, int64 to) {
    Owned<PathGraph>* graph = load_graph(edges, directed);
    check_node(graph->object->has(from), table, key_text(nullptr, from));
    check_node(graph->object->has(to), table, key_text(nullptr, to));
    return copied<PathStep>([&] { return graph->object->smoothest_path(from, to); });
}

// --- with nodes in memory and edges in a file

struct StreamedGraph {
    Oid table;
    Owned<NodeNumbers>* numbers;
    EdgeFile edges;
    NumberedEdge* some;  // (edges_at_once)
};

// Calls use(edge), inside guarded(), for all edges of a file.
template <typename Use>
void for_edges(const StreamedGraph& graph, const EdgeFile& file, const Use& use) {
    for (Size first = 0; first < file.count; first += edges_at_once) {
        const Size count = std::min(edges_at_once, file.count - first);
        read_numbered(file, first, count, graph.some);
        guarded([&] {
            for (Size i = 0; i < count; ++i) use(graph.some[i]);
        });
    }
}

// Memory of a node, at most: while keys are gathered, or as a key with the state of a search.
constexpr Size max_node_bytes =
    std::max(NodeNumbers::node_bytes,
             sizeof(int64) + std::max(LevelSearch::node_bytes, SpanningForest::memory(1, 2)));

StreamedGraph number_nodes(Oid table, BufFile* keyed, Size count) {
    StreamedGraph graph = {table, owned_by<NodeNumbers>(CurrentMemoryContext), {}, nullptr};
    const Size most = std::min<Size>(graph_memory() / max_node_bytes, (Size{1} << 31) - 1);
    KeyedEdge* some = static_cast<KeyedEdge*>(palloc(sizeof(KeyedEdge) * edges_at_once));
    graph.some = static_cast<NumberedEdge*>(palloc(sizeof(NumberedEdge) * edges_at_once));
    guarded([&] { graph.numbers->object = new NodeNumbers(most); });
    NodeNumbers* numbers = graph.numbers->object;
    bool fits = true;
    for (Size first = 0; first < count && fits; first += edges_at_once) {
        const Size here = std::min(edges_at_once, count - first);
        read_keyed(keyed, first, here, some);
        guarded([&] {
            for (Size i = 0; i < here && fits; ++i)
                fits = numbers->add(some[i].src) && numbers->add(some[i].dst);
        });
    }
    guarded([&] { fits = fits && numbers->finish(); });
    if (!fits)
        ereport(ERROR, (errcode(ERRCODE_PROGRAM_LIMIT_EXCEEDED),
                        errmsg("the nodes of graph \"%s\" do not fit into maintenance_work_mem",
                               get_rel_name(table)),
                        errdetail("There is room for %zu nodes.", most),
                        errhint("Increase maintenance_work_mem.")));
    graph.edges = new_edge_file();
    for (Size first = 0; first < count; first += edges_at_once) {
        const Size here = std::min(edges_at_once, count - first);
        read_keyed(keyed, first, here, some);
        for (Size i = 0; i < here; ++i)
            graph.some[i] = {numbers->number_of(some[i].src), numbers->number_of(some[i].dst),
                             edge_order(some[i].distance)};
        append_edges(&graph.edges, graph.some, here);
    }
    BufFileClose(keyed);
    pfree(some);
    return graph;
}

// The longest edge of the smoothest path; NaN: no path.
float find_bottleneck(const StreamedGraph& graph, bool directed, uint32 from, uint32 to) {
    const Size nodes = graph.numbers->object->count();
    float limit = 0;
    if (directed) {
        Owned<DirectedBottleneck>* search = owned_by<DirectedBottleneck>(CurrentMemoryContext);
        guarded([&] { search->object = new DirectedBottleneck(nodes, from, to); });
        do
            for_edges(graph, graph.edges,
                      [&](const NumberedEdge& edge) { search->object->add(edge); });
        while (search->object->end_pass());
        limit = search->object->bottleneck();
        guarded([&] { delete std::exchange(search->object, nullptr); });
        return limit;
    }
    // Edges that the forest holds between two reductions: bounded by memory, and by the time to
    // sort.
    constexpr Size max_room = Size{1} << 22;
    const Size left = graph_memory() - std::min(graph_memory(), nodes * 12);
    const Size room = std::min({left / sizeof(NumberedEdge), max_room, graph.edges.count + 1});
    Owned<SpanningForest>* forest = owned_by<SpanningForest>(CurrentMemoryContext);
    guarded([&] { forest->object = new SpanningForest(nodes, room); });
    for_edges(graph, graph.edges, [&](const NumberedEdge& edge) { forest->object->add(edge); });
    guarded([&] {
        limit = forest->object->bottleneck(from, to);
        delete std::exchange(forest->object, nullptr);
    });
    return limit;
}

// Searches the edges within the limit in memory, as they fit. Closes the file, frees the numbers.
Copied<PathStep> path_along(const StreamedGraph& graph, const EdgeFile& within, bool directed,
                            uint32 from, uint32 to) {
    const NodeNumbers& numbers = *graph.numbers->object;
    const int64 first = numbers.node(from), last = numbers.node(to);
    GrowingEdges growing = new_growing_edges();
    const Size each = std::min(edges_at_once, std::max<Size>(within.count, 1));
    TableEdges some = {static_cast<int64*>(palloc(each * sizeof(int64))),
                       static_cast<int32*>(palloc0(each * sizeof(int32))),
                       static_cast<int64*>(palloc(each * sizeof(int64))),
                       static_cast<float*>(palloc(each * sizeof(float))), 0};
    for (Size done = 0; done < within.count; done += some.count) {
        some.count = std::min(each, within.count - done);
        read_numbered(within, done, some.count, graph.some);
        for (Size i = 0; i < some.count; ++i) {
            some.src[i] = numbers.node(graph.some[i].src);
            some.dst[i] = numbers.node(graph.some[i].dst);
            some.distance[i] = graph.some[i].distance;
        }
        append_edges(&growing, some);
    }
    BufFileClose(within.file);
    guarded([&] { delete std::exchange(graph.numbers->object, nullptr); });
    return path_in_memory(graph.table, &growing.edges, directed, first, last);
}

Size edges_in_memory(bool directed) {
    return most_graph_edges(PathGraph::memory(1, directed));
}

Copied<PathStep> path_by_levels(const StreamedGraph& graph, bool directed, uint32 from, uint32 to,
                                float limit) {
    // Only edges up to the limit are on a path: a smaller file to read for every step.
    EdgeFile within = new_edge_file();
    for (Size first = 0; first < graph.edges.count; first += edges_at_once) {
        const Size count = std::min(edges_at_once, graph.edges.count - first);
        read_numbered(graph.edges, first, count, graph.some);
        const NumberedEdge* end =
            std::remove_if(graph.some, graph.some + count,
                           [&](const NumberedEdge& edge) { return edge.distance > limit; });
        append_edges(&within, graph.some, static_cast<Size>(end - graph.some));
    }
    BufFileClose(graph.edges.file);
    if (from != to && within.count <= edges_in_memory(directed))
        return path_along(graph, within, directed, from, to);
    const NodeNumbers& numbers = *graph.numbers->object;
    Owned<LevelSearch>* search = owned_by<LevelSearch>(CurrentMemoryContext);
    guarded([&] { search->object = new LevelSearch(numbers.count(), from, to, directed); });
    do for_edges(graph, within, [&](const NumberedEdge& edge) { search->object->add(edge); });
    while (search->object->end_level());
    BufFileClose(within.file);
    return copied<PathStep>([&] { return search->object->path(numbers); });
}

Copied<PathStep> path_in_file(Oid table, const GraphEdges& edges, bool directed, int64 from,
                              int64 to) {
    const StreamedGraph graph = number_nodes(table, edges.file, edges.count);
    const NodeNumbers& numbers = *graph.numbers->object;
    check_node(numbers.has(from), table, key_text(nullptr, from));
    check_node(numbers.has(to), table, key_text(nullptr, to));
    const uint32 first = numbers.number_of(from), last = numbers.number_of(to);
    const float limit = find_bottleneck(graph, directed, first, last);
    if (limit != limit) {
        BufFileClose(graph.edges.file);
        return {nullptr, 0};
    }
    return path_by_levels(graph, directed, first, last, limit);
}

// Puts the components of nodes, of which nodes(i) gives (node, component). Each is named by its
// smallest node: kernels know the smallest number only.
template <typename Nodes>
void put_components(const ReturnSetInfo* result, const KeyNames* names, Size count,
                    const Nodes& nodes) {
    int64* least = nullptr;  // by the kernels' names of components
    if (names) {
        least = static_cast<int64*>(
            MemoryContextAllocHuge(CurrentMemoryContext, Max(count, Size{1}) * sizeof(int64)));
        for (Size i = 0; i < count; ++i) {
            const NodeComponent here = nodes(i);
            if (here.node == here.component) least[here.component] = here.node;
        }
        for (Size i = 0; i < count; ++i) {
            const NodeComponent here = nodes(i);
            if (key_is_less(names, here.node, least[here.component]))
                least[here.component] = here.node;
        }
    }
    for (Size i = 0; i < count; ++i) {
        if (i % 8192 == 0) CHECK_FOR_INTERRUPTS();
        const NodeComponent here = nodes(i);
        Datum values[2] = {key_datum(names, here.node),
                           key_datum(names, least ? least[here.component] : here.component)};
        bool nulls[2] = {};
        tuplestore_putvalues(result->setResult, result->setDesc, values, nulls);
    }
}

void components_in_file(Oid table, const GraphEdges& edges, const ReturnSetInfo* result,
                        const KeyNames* names) {
    const StreamedGraph graph = number_nodes(table, edges.file, edges.count);
    const NodeNumbers& numbers = *graph.numbers->object;
    Owned<NodeSets>* sets = owned_by<NodeSets>(CurrentMemoryContext);
    guarded([&] { sets->object = new NodeSets(numbers.count()); });
    for_edges(graph, graph.edges,
              [&](const NumberedEdge& edge) { sets->object->unite(edge.src, edge.dst); });
    BufFileClose(graph.edges.file);
    put_components(result, names, numbers.count(), [&](Size i) {
        const auto number = static_cast<uint32>(i);
        return NodeComponent{numbers.node(number), numbers.node(sets->object->root_of(number))};
    });
}

GraphEdges read_path_edges(Oid table, KeyNames* names, bool directed) {
    return read_graph_anywhere(table, names, edges_in_memory(directed));
}

}  // namespace

}  // namespace pgwarp

using namespace pgwarp;

PGWARP_FUNCTION(pgwarp_knn_path) {
    check_signature(fcinfo, 4, 3);
    const Oid table = PG_GETARG_OID(0);
    compat_init_materialized(fcinfo);
    const ReturnSetInfo* result = reinterpret_cast<ReturnSetInfo*>(fcinfo->resultinfo);
    const bool directed = PG_GETARG_BOOL(3);
    KeyNames* names = names_in_result(result, 1, graph_memory());
    GraphEdges edges = read_path_edges(table, names, directed);
    const int64 from = node_argument(fcinfo, 1, table, names);
    const int64 to = node_argument(fcinfo, 2, table, names);
    const Copied<PathStep> path = edges.file
                                      ? path_in_file(table, edges, directed, from, to)
                                      : path_in_memory(table, &edges.edges, directed, from, to);
    if (path.count == 0)
        ereport(NOTICE, (errmsg("graph \"%s\" has no path from %s to %s", get_rel_name(table),
                                key_text(names, from), key_text(names, to)),
                         errhint("knn_components() tells what hangs together; a graph with a "
                                 "larger k has fewer components.")));
    for (Size i = 0; i < path.count; ++i) {
        Datum values[3] = {Int32GetDatum(static_cast<int32>(i)),
                           key_datum(names, path.items[i].node),
                           Float4GetDatum(path.items[i].distance)};
        bool nulls[3] = {false, false, i == 0};
        tuplestore_putvalues(result->setResult, result->setDesc, values, nulls);
    }
    return static_cast<Datum>(0);
}

PGWARP_FUNCTION(pgwarp_knn_components) {
    check_signature(fcinfo, 1, 2);
    compat_init_materialized(fcinfo);
    const ReturnSetInfo* result = reinterpret_cast<ReturnSetInfo*>(fcinfo->resultinfo);
    const Oid table = PG_GETARG_OID(0);
    KeyNames* names = names_in_result(result, 0, graph_memory());
    GraphEdges edges = read_path_edges(table, names, true);
    if (edges.file) {
        components_in_file(table, edges, result, names);
        return static_cast<Datum>(0);
    }
    Owned<PathGraph>* graph = load_graph(&edges.edges, true);
    const Copied<NodeComponent> nodes =
        copied<NodeComponent>([&] { return graph->object->components(); });
    put_components(result, names, nodes.count, [&](Size i) { return nodes.items[i]; });
    return static_cast<Datum>(0);
}
