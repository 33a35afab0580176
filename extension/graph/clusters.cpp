// graph_hdbscan: clusters by density over a graph.

#include <algorithm>
#include <cstring>

#include "kernels/density_clusters.h"
#include "extension/graph/functions.h"
#include "extension/graph/job.h"
#include "extension/graph/neighbors.h"
#include "extension/graph/table.h"
#include "extension/util/signature.h"

extern "C" {
#include "utils/lsyscache.h"
}

namespace pgwarp {

namespace {

ClusterSelection selection_called(const char* name) {
    if (strcmp(name, "eom") == 0) return ClusterSelection::excess_of_mass;
    if (strcmp(name, "leaf") == 0) return ClusterSelection::leaves;
    ereport(ERROR,
            (errcode(ERRCODE_INVALID_PARAMETER_VALUE), errmsg("unknown selection \"%s\"", name),
             errhint("Selections are eom (excess of mass) and leaf.")));
    return ClusterSelection::leaves;
}

struct ClusterArguments {
    int32 min_cluster_size;
    int32 min_samples;  // 0: not given
    ClusterSelection selection;
};

ClusterArguments read_arguments(FunctionCallInfo fcinfo) {
    constexpr const char* names[] = {"graph", "min_cluster_size"};
    refuse_null_arguments(fcinfo, names, lengthof(names));
    if (PG_ARGISNULL(3))
        ereport(ERROR,
                (errcode(ERRCODE_NULL_VALUE_NOT_ALLOWED), errmsg("selection must not be null")));
    ClusterArguments arguments = {PG_GETARG_INT32(1), PG_ARGISNULL(2) ? 0 : PG_GETARG_INT32(2),
                                  selection_called(text_argument(fcinfo, 3))};
    if (arguments.min_cluster_size < 2)
        ereport(ERROR, (errcode(ERRCODE_INVALID_PARAMETER_VALUE),
                        errmsg("min_cluster_size must be at least 2")));
    if (!PG_ARGISNULL(2) && arguments.min_samples < 1)
        ereport(ERROR, (errcode(ERRCODE_INVALID_PARAMETER_VALUE),
                        errmsg("min_samples must be at least 1")));
    return arguments;
}

// A core distance is that of the neighbor number min_samples - 1: a graph's lists must have it.
uint32 samples_of(const ClusterArguments& arguments, const LoadedGraph& graph) {
    const uint32 most = graph.graph->object->longest_list + 1;
    const uint32 wanted = static_cast<uint32>(
        arguments.min_samples > 0 ? arguments.min_samples : arguments.min_cluster_size);
    if (wanted <= most || graph.graph->object->vertices() == 0) return wanted;
    if (arguments.min_samples > 0)
        ereport(ERROR, (errcode(ERRCODE_INVALID_PARAMETER_VALUE),
                        errmsg("min_samples must be at most %u for graph \"%s\"", most,
                               get_rel_name(graph.table)),
                        errdetail("Its longest list has %u neighbors.", most - 1),
                        errhint("Make a graph with a larger k.")));
    ereport(NOTICE, (errmsg("min_samples is %u: graph \"%s\" has lists of %u neighbors", most,
                            get_rel_name(graph.table), most - 1),
                     errhint("Make a graph with a larger k, or give min_samples.")));
    return most;
}

// Owned by the current memory context.
const DensityLabel* find_labels(const LoadedGraph& graph, const DensityOptions& options) {
    const NeighborGraph& made = *graph.graph->object;
    check_graph_room(graph, density_memory(made.vertices(), made.links.size() / 2));
    auto* found = owned_by<std::vector<DensityLabel>>(CurrentMemoryContext);
    const double begun = seconds_now();
    guarded_interruptibly([&] {
        Workers workers(graph_threads(), query_interrupts());
        found->object = new std::vector<DensityLabel>(
            density_clusters(workers, made, options, query_interrupts()));
    });
    ereport(DEBUG1, (errmsg("clusters of %zu vertices and %zu edges: read in %.3f s, adjacency in "
                            "%.3f s, clusters in %.3f s",
                            made.vertices(), made.links.size() / 2, graph.seconds_read,
                            graph.seconds_made, seconds_now() - begun)));
    return found->object->data();
}

}  // namespace

}  // namespace pgwarp

using namespace pgwarp;

PGWARP_FUNCTION(pgwarp_graph_hdbscan) {
    check_signature(fcinfo, 4, 4);
    const ClusterArguments arguments = read_arguments(fcinfo);
    compat_init_materialized(fcinfo);
    const auto* result = reinterpret_cast<ReturnSetInfo*>(fcinfo->resultinfo);
    KeyNames* names = names_in_result(result, 0, graph_memory());
    const LoadedGraph graph = load_neighbor_graph(PG_GETARG_OID(0), names, RepeatedEdge::smallest);
    refuse_negative_distances(graph);
    const DensityOptions options = {static_cast<uint32>(arguments.min_cluster_size),
                                    samples_of(arguments, graph), arguments.selection};
    const DensityLabel* labels = find_labels(graph, options);
    const Size count = graph.graph->object->vertices();
    for (Size i = 0; i < count; ++i) {
        if (i % 8192 == 0) CHECK_FOR_INTERRUPTS();
        Datum values[4] = {vertex_key(graph, i), Int32GetDatum(labels[i].label),
                           Float4GetDatum(labels[i].probability),
                           Float4GetDatum(labels[i].outlier_score)};
        bool nulls[4] = {};
        tuplestore_putvalues(result->setResult, result->setDesc, values, nulls);
    }
    return static_cast<Datum>(0);
}
