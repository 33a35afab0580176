// knn_path and knn_components: ways through a graph that is in a table.

#include <algorithm>

#include "kernels/graph_paths.h"
#include "extension/graph_table.h"
#include "extension/guard.h"

extern "C" {
#include "utils/lsyscache.h"
}

namespace pgwarp {

namespace {

Owned<PathGraph>* load_graph(Oid table, bool directed) {
    Owned<PathGraph>* graph = owned_by<PathGraph>(CurrentMemoryContext);
    const TableEdges edges =
        read_graph_table(table, most_graph_edges(PathGraph::memory(1, directed)));
    guarded_interruptibly([&] {
        // int64 of PostgreSQL and of the standard are two names for numbers of 64 bits.
        static_assert(sizeof(int64) == sizeof(int64_t));
        graph->object = new PathGraph(
            {reinterpret_cast<const int64_t*>(edges.src),
             reinterpret_cast<const int64_t*>(edges.dst), edges.distance, edges.count},
            directed, &QueryCancelPending, &ProcDiePending);
    });
    pfree(edges.src);
    pfree(edges.rank);
    pfree(edges.dst);
    pfree(edges.distance);
    return graph;
}

void check_node(const PathGraph* graph, Oid table, int64 node) {
    if (!graph->has(node))
        ereport(ERROR, (errcode(ERRCODE_INVALID_PARAMETER_VALUE),
                        errmsg("graph \"%s\" has no node %lld", get_rel_name(table),
                               static_cast<long long>(node))));
}

// What a kernel returned, for PostgreSQL's side to go through.
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

}  // namespace

}  // namespace pgwarp

using namespace pgwarp;

PGWARP_FUNCTION(pgwarp_knn_path) {
    const Oid table = PG_GETARG_OID(0);
    const int64 from = PG_GETARG_INT64(1), to = PG_GETARG_INT64(2);
    compat_init_materialized(fcinfo);
    const ReturnSetInfo* result = reinterpret_cast<ReturnSetInfo*>(fcinfo->resultinfo);
    Owned<PathGraph>* graph = load_graph(table, PG_GETARG_BOOL(3));
    check_node(graph->object, table, from);
    check_node(graph->object, table, to);
    const Copied<PathStep> path =
        copied<PathStep>([&] { return graph->object->smoothest_path(from, to); });
    if (path.count == 0)
        ereport(NOTICE, (errmsg("graph \"%s\" has no path from %lld to %lld", get_rel_name(table),
                                static_cast<long long>(from), static_cast<long long>(to)),
                         errhint("knn_components() tells what hangs together; a graph with a "
                                 "larger k has fewer components.")));
    for (Size i = 0; i < path.count; ++i) {
        Datum values[3] = {Int32GetDatum(static_cast<int32>(i)), Int64GetDatum(path.items[i].node),
                           Float4GetDatum(path.items[i].distance)};
        bool nulls[3] = {false, false, i == 0};
        tuplestore_putvalues(result->setResult, result->setDesc, values, nulls);
    }
    return static_cast<Datum>(0);
}

PGWARP_FUNCTION(pgwarp_knn_components) {
    compat_init_materialized(fcinfo);
    const ReturnSetInfo* result = reinterpret_cast<ReturnSetInfo*>(fcinfo->resultinfo);
    Owned<PathGraph>* graph = load_graph(PG_GETARG_OID(0), true);
    const Copied<NodeComponent> nodes =
        copied<NodeComponent>([&] { return graph->object->components(); });
    for (Size i = 0; i < nodes.count; ++i) {
        Datum values[2] = {Int64GetDatum(nodes.items[i].node),
                           Int64GetDatum(nodes.items[i].component)};
        bool nulls[2] = {};
        tuplestore_putvalues(result->setResult, result->setDesc, values, nulls);
    }
    return static_cast<Datum>(0);
}
