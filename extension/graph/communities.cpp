// graph_communities: Leiden communities of a graph.

#include <cmath>
#include <cstring>

#include "kernels/communities.h"
#include "extension/graph/functions.h"
#include "extension/graph/job.h"
#include "extension/graph/neighbors.h"
#include "extension/graph/table.h"
#include "extension/util/signature.h"

namespace pgwarp {

namespace {

CommunityQuality quality_called(const char* name) {
    if (strcmp(name, "modularity") == 0) return CommunityQuality::modularity;
    if (strcmp(name, "cpm") == 0) return CommunityQuality::cpm;
    ereport(ERROR,
            (errcode(ERRCODE_INVALID_PARAMETER_VALUE), errmsg("unknown quality \"%s\"", name),
             errhint("Qualities are modularity and cpm (the constant Potts model).")));
    return CommunityQuality::cpm;
}

EdgeWeights weights_called(const char* name) {
    if (strcmp(name, "gaussian") == 0) return EdgeWeights::gaussian;
    if (strcmp(name, "uniform") == 0) return EdgeWeights::uniform;
    if (strcmp(name, "given") == 0) return EdgeWeights::given;
    ereport(ERROR,
            (errcode(ERRCODE_INVALID_PARAMETER_VALUE), errmsg("unknown weights \"%s\"", name),
             errhint("Weights are gaussian, uniform and given (the column distance).")));
    return EdgeWeights::given;
}

CommunityOptions read_arguments(FunctionCallInfo fcinfo) {
    constexpr const char* names[] = {"graph", "resolution", "quality", "weights", "seed"};
    refuse_null_arguments(fcinfo, names, lengthof(names));
    constexpr int32 most_iterations = 1000;
    const int32 iterations = PG_ARGISNULL(5) ? 0 : PG_GETARG_INT32(5);
    if (!PG_ARGISNULL(5) && (iterations < 1 || iterations > most_iterations))
        ereport(ERROR, (errcode(ERRCODE_INVALID_PARAMETER_VALUE),
                        errmsg("iterations must be between 1 and %d", most_iterations)));
    CommunityOptions options = {};
    options.resolution = PG_GETARG_FLOAT8(1);
    options.quality = quality_called(text_argument(fcinfo, 2));
    options.weights = weights_called(text_argument(fcinfo, 3));
    options.seed = static_cast<uint64>(static_cast<int64>(PG_GETARG_INT32(4)));
    options.iterations = static_cast<uint32>(iterations);
    if (!(options.resolution > 0) || std::isinf(options.resolution))
        ereport(ERROR, (errcode(ERRCODE_INVALID_PARAMETER_VALUE),
                        errmsg("resolution must be positive and finite")));
    return options;
}

// Owned by the current memory context.
const Communities& find(const LoadedGraph& graph, const CommunityOptions& options) {
    const NeighborGraph& made = *graph.graph->object;
    check_graph_room(graph, communities_memory(made.vertices(), made.links.size() / 2));
    Owned<Communities>* found = owned_by<Communities>(CurrentMemoryContext);
    const double begun = seconds_now();
    guarded_interruptibly([&] {
        Workers workers(graph_threads(), query_interrupts());
        found->object =
            new Communities(find_communities(workers, made, options, query_interrupts()));
    });
    ereport(DEBUG1, (errmsg("%u communities of quality %.6f, of %zu vertices and %zu edges: read "
                            "in %.3f s, adjacency in %.3f s, communities in %.3f s",
                            found->object->count, found->object->quality, made.vertices(),
                            made.links.size() / 2, graph.seconds_read, graph.seconds_made,
                            seconds_now() - begun)));
    return *found->object;
}

}  // namespace

}  // namespace pgwarp

using namespace pgwarp;

PGWARP_FUNCTION(pgwarp_graph_communities) {
    check_signature(fcinfo, 6, 2);
    const CommunityOptions options = read_arguments(fcinfo);
    compat_init_materialized(fcinfo);
    const auto* result = reinterpret_cast<ReturnSetInfo*>(fcinfo->resultinfo);
    KeyNames* names = names_in_result(result, 0, graph_memory());
    const bool are_weights = options.weights == EdgeWeights::given;
    const LoadedGraph graph = load_neighbor_graph(
        PG_GETARG_OID(0), names, are_weights ? RepeatedEdge::greatest : RepeatedEdge::smallest);
    if (options.weights != EdgeWeights::uniform) refuse_negative_distances(graph);
    if (are_weights) refuse_infinite_distances(graph);
    const Communities& found = find(graph, options);
    const Size count = graph.graph->object->vertices();
    for (Size i = 0; i < count; ++i) {
        if (i % 8192 == 0) CHECK_FOR_INTERRUPTS();
        Datum values[2] = {vertex_key(graph, i), Int32GetDatum(static_cast<int32>(found.of[i]))};
        bool nulls[2] = {};
        tuplestore_putvalues(result->setResult, result->setDesc, values, nulls);
    }
    return static_cast<Datum>(0);
}
