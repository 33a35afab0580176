// embedding_layout: two coordinates for every node of a graph that is in a table.

#include <algorithm>
#include <cmath>
#include <utility>

#include "kernels/graph_layout.h"
#include "extension/graph/edge_file.h"
#include "extension/graph/functions.h"
#include "extension/graph/job.h"
#include "extension/graph/neighbors.h"
#include "extension/graph/table.h"
#include "extension/guard.h"
#include "extension/util/signature.h"

extern "C" {
#include "utils/lsyscache.h"
#include "utils/memutils.h"
}

namespace pgwarp {

namespace {

constexpr int32 most_epochs = 10000;
// Coordinates are of this order: beyond it, float4 would lose what min_dist says.
constexpr double most_spread = 1000;

LayoutOptions layout_options(FunctionCallInfo fcinfo) {
    constexpr const char* names[] = {"graph", "min_dist", "spread"};
    refuse_null_arguments(fcinfo, names, lengthof(names));
    if (PG_ARGISNULL(4))
        ereport(ERROR, (errcode(ERRCODE_NULL_VALUE_NOT_ALLOWED), errmsg("seed must not be null")));
    LayoutOptions options;
    options.min_dist = PG_GETARG_FLOAT8(1);
    options.spread = PG_GETARG_FLOAT8(2);
    options.seed = static_cast<uint64>(static_cast<int64>(PG_GETARG_INT32(4)));
    // Negated, so that NaN does not pass.
    if (!(options.spread >= 0.001 && options.spread <= most_spread))
        ereport(ERROR, (errcode(ERRCODE_INVALID_PARAMETER_VALUE),
                        errmsg("spread must be between 0.001 and %g", most_spread)));
    if (!(options.min_dist >= 0 && options.min_dist <= options.spread))
        ereport(ERROR,
                (errcode(ERRCODE_INVALID_PARAMETER_VALUE),
                 errmsg("min_dist must be between 0 and spread"),
                 errdetail("min_dist is %g, spread is %g.", options.min_dist, options.spread)));
    if (!PG_ARGISNULL(3)) {
        const int32 epochs = PG_GETARG_INT32(3);
        if (epochs < 1 || epochs > most_epochs)
            ereport(ERROR, (errcode(ERRCODE_INVALID_PARAMETER_VALUE),
                            errmsg("epochs must be between 1 and %d", most_epochs)));
        options.epochs = static_cast<uint32>(epochs);
    }
    return options;
}

[[noreturn]] void report_too_large(Oid table, Size needed) {
    ereport(ERROR, (errcode(ERRCODE_PROGRAM_LIMIT_EXCEEDED),
                    errmsg("the layout of graph \"%s\" does not fit into maintenance_work_mem",
                           get_rel_name(table)),
                    errdetail("It takes %zu kB.", needed / 1024),
                    errhint("Increase maintenance_work_mem.")));
}

Size layout_memory(Size edges, Size nodes) {
    constexpr Size edge_bytes = 2 * sizeof(int64) + sizeof(int32) + sizeof(float);
    return edges * edge_bytes + FuzzyGraph::memory(edges, nodes);
}

TableEdges read_layout_edges(Oid table, KeyNames* names) {
    GraphEdges edges = read_graph_anywhere(table, names, graph_memory() / layout_memory(1, 0));
    if (!edges.file) return edges.edges;
    const Size count = edges.count;
    end_graph_edges(&edges);
    report_too_large(table, layout_memory(count, 0));
}

int compare_names(const void* a, const void* b, void* names) {
    const int64 one = *static_cast<const int64*>(a), other = *static_cast<const int64*>(b);
    if (one == other) return 0;
    return key_is_less(static_cast<const KeyNames*>(names), one, other) ? -1 : 1;
}

// Names have numbers in the order in which the table was read. Gives the edges numbers in the order
// of names, so that the layout does not depend on that, and returns the names' numbers by these.
int64* order_names(TableEdges* edges, KeyNames* names) {
    Size count = 0;
    for (Size i = 0; i < edges->count; ++i)
        count = std::max(
            {count, static_cast<Size>(edges->src[i]) + 1, static_cast<Size>(edges->dst[i]) + 1});
    const auto new_numbers = [&] {
        return static_cast<int64*>(
            MemoryContextAllocHuge(CurrentMemoryContext, Max(count, Size{1}) * sizeof(int64)));
    };
    int64* sorted = new_numbers();
    int64* places = new_numbers();
    for (Size i = 0; i < count; ++i) sorted[i] = static_cast<int64>(i);
    qsort_arg(sorted, count, sizeof(int64), compare_names, names);
    for (Size i = 0; i < count; ++i) places[sorted[i]] = static_cast<int64>(i);
    for (Size i = 0; i < edges->count; ++i) {
        edges->src[i] = places[edges->src[i]];
        edges->dst[i] = places[edges->dst[i]];
    }
    pfree(places);
    return sorted;
}

// What is alive while a layout is made.
struct LayoutRun {
    Owned<Workers>* workers;
    Owned<FuzzyGraph>* graph;
    Owned<std::vector<LayoutPoint>>* points;  // (nodes)
};

// `begun`: when the table's edges were first asked for.
LayoutRun run_layout(Oid table, TableEdges* edges, const LayoutOptions& options, double begun) {
    static_assert(sizeof(int64) == sizeof(int64_t));
    const double read = seconds_now();
    LayoutRun run = {owned_by<Workers>(CurrentMemoryContext),
                     owned_by<FuzzyGraph>(CurrentMemoryContext),
                     owned_by<std::vector<LayoutPoint>>(CurrentMemoryContext)};
    const int threads = graph_threads();
    run_graph_kernel([&] {
        run.workers->object = new Workers(threads, query_interrupts());
        run.graph->object = new FuzzyGraph(
            *run.workers->object,
            {reinterpret_cast<const int64_t*>(edges->src),
             reinterpret_cast<const int64_t*>(edges->dst), edges->distance, edges->count},
            query_interrupts());
    });
    const Size needed = layout_memory(edges->count, run.graph->object->count());
    free_edges(edges);
    if (needed > graph_memory()) report_too_large(table, needed);
    const double weighed = seconds_now();
    double started = weighed;
    run_graph_kernel([&] {
        Workers& workers = *run.workers->object;
        const FuzzyGraph& graph = *run.graph->object;
        run.points->object = new std::vector<LayoutPoint>(
            spectral_layout(workers, graph, options.seed, query_interrupts()));
        started = seconds_now();
        optimize_layout(workers, graph, options, *run.points->object, query_interrupts());
        delete std::exchange(run.workers->object, nullptr);
    });
    ereport(DEBUG1, (errmsg("layout of %zu nodes: read in %.3f s, fuzzy set in %.3f s, start in "
                            "%.3f s, epochs in %.3f s",
                            run.graph->object->count(), read - begun, weighed - read,
                            started - weighed, seconds_now() - started)));
    return run;
}

}  // namespace

}  // namespace pgwarp

using namespace pgwarp;

PGWARP_FUNCTION(pgwarp_embedding_layout) {
    check_signature(fcinfo, 5, 3);
    const LayoutOptions options = layout_options(fcinfo);
    const Oid table = PG_GETARG_OID(0);
    compat_init_materialized(fcinfo);
    const ReturnSetInfo* result = reinterpret_cast<ReturnSetInfo*>(fcinfo->resultinfo);
    KeyNames* names = names_in_result(result, 0, graph_memory());
    const double begun = seconds_now();
    TableEdges edges = read_layout_edges(table, names);
    const int64* name_numbers = names ? order_names(&edges, names) : nullptr;
    const LayoutRun run = run_layout(table, &edges, options, begun);
    const FuzzyGraph& graph = *run.graph->object;
    const LayoutPoint* points = run.points->object->data();
    for (Size i = 0; i < graph.count(); ++i) {
        if (i % 8192 == 0) CHECK_FOR_INTERRUPTS();
        const int64 node = graph.node(i);
        Datum values[3] = {key_datum(names, name_numbers ? name_numbers[node] : node),
                           Float4GetDatum(points[i].x), Float4GetDatum(points[i].y)};
        bool nulls[3] = {};
        tuplestore_putvalues(result->setResult, result->setDesc, values, nulls);
    }
    return static_cast<Datum>(0);
}
