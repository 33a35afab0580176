// knn_graph_merge: merges the graphs of two disjoint sets into one.

#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/distance.h"
#include "extension/graph/functions.h"
#include "extension/graph/given.h"
#include "extension/graph/metric.h"
#include "extension/graph/parts.h"
#include "extension/graph/progress.h"
#include "extension/graph/table.h"
#include "extension/util/signature.h"

extern "C" {
#include "access/htup_details.h"
#include "catalog/pg_type.h"
#include "executor/spi.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"
#include "utils/snapmgr.h"
#include "utils/rls.h"
}

namespace pgwarp {

namespace {

// The default k: the smaller of both, ignoring a graph without edges.
uint32 common_neighbors(const GivenGraph& a, const GivenGraph& b) {
    if (a.edges.count == 0 || b.edges.count == 0) return std::max(a.neighbors, b.neighbors);
    return std::min(a.neighbors, b.neighbors);
}

void check_disjoint(const GraphSet& set, const KeyedRow* sorted) {
    for (Size i = 0; i + 1 < set.count; ++i)
        if (sorted[i].key == sorted[i + 1].key)
            ereport(ERROR, (errcode(ERRCODE_UNIQUE_VIOLATION),
                            errmsg("key %s is in both tables", key_text(set.names, sorted[i].key)),
                            errhint("Graphs that are merged are of sets without common rows. For "
                                    "rows added to one table there is knn_graph_append().")));
}

void check_neighbors(const GivenGraph& graph, uint32 k) {
    if (graph.edges.count > 0 && k > graph.neighbors)
        ereport(ERROR, (errcode(ERRCODE_INVALID_PARAMETER_VALUE),
                        errmsg("k cannot be greater than that of the graphs"),
                        errdetail("k is %u, graph \"%s\" has %u neighbors of a row.", k,
                                  get_rel_name(graph.graph), graph.neighbors)));
}

void check_together(const GraphSet& first, const GraphSet& second) {
    if (second.dims != first.dims && first.count > 0 && second.count > 0)
        ereport(ERROR, (errcode(ERRCODE_DATA_EXCEPTION),
                        errmsg("different vector dimensions %u and %u", first.dims, second.dims)));
    if (first.count + second.count > most_graph_rows)
        ereport(ERROR, (errcode(ERRCODE_PROGRAM_LIMIT_EXCEEDED),
                        errmsg("a graph can have %zu rows at most", most_graph_rows)));
}

}  // namespace

}  // namespace pgwarp

using namespace pgwarp;

PGWARP_FUNCTION(pgwarp_knn_graph_merge) {
    check_signature(fcinfo, 11, 4);
    constexpr const char* names[] = {"first_graph",  "first_table", "second_graph",
                                     "second_table", "key",         "vector_column"};
    refuse_null_arguments(fcinfo, names, lengthof(names));
    if (PG_ARGISNULL(7) || PG_ARGISNULL(10))
        ereport(ERROR, (errcode(ERRCODE_NULL_VALUE_NOT_ALLOWED),
                        errmsg("%s must not be null", PG_ARGISNULL(7) ? "metric" : "seed")));
    const Metric metric = graph_metric_called(text_argument(fcinfo, 7));
    compat_init_materialized(fcinfo);
    const Oid graphs[] = {PG_GETARG_OID(0), PG_GETARG_OID(2)};
    const Oid tables[] = {PG_GETARG_OID(1), PG_GETARG_OID(3)};
    begin_graph_progress(tables[0]);
    report_graph_stage(GraphStage::edges, 0, 0);
    const auto* result = reinterpret_cast<ReturnSetInfo*>(fcinfo->resultinfo);
    KeyNames* keys = names_in_result(result, 0, graph_memory());
    GivenGraph given[] = {read_given_graph(graphs[0], keys), read_given_graph(graphs[1], keys)};
    const uint32 k = wanted_neighbors(fcinfo, 6, common_neighbors(given[0], given[1]));
    for (const GivenGraph& graph : given) check_neighbors(graph, k);
    GraphJob job = make_graph_job(fcinfo, metric, static_cast<int32>(k), {8, 9, 10});
    const GraphRoom room{job.options.degree, job.k, job.threads};
    TableColumns columns = {tables[0], NameStr(*PG_GETARG_NAME(5)), NameStr(*PG_GETARG_NAME(4))};
    columns.names = keys;
    GraphSet set = read_graph_set(columns, metric, room);
    columns.table = tables[1];
    GraphSet second = read_graph_set(columns, metric, room);
    const Size border = set.count;
    check_together(set, second);
    set.dims = border > 0 ? set.dims : second.dims;
    const Size count = border + second.count;
    const bool fits =
        !set.file && !second.file && count <= rows_in_memory(room, std::max(set.dims, 1u));
    start_builder(&job, count, set.dims, false);
    if (fits && count <= rows_on_device(job, std::max(set.dims, 1u)))
        add_graph_set(&set, second);
    else
        join_in_file(&set, &second);
    report_left_out(set);
    report_graph_stage(GraphStage::keys, 0, 0);
    const KeyedRow* sorted = sort_by_key(set);
    check_disjoint(set, sorted);
    EdgeRows to{open_edge_writer(result, keys), &set};
    if (set.file) {
        merge_by_parts(job, set, border, given, sorted, rows_sink(&to));
        BufFileClose(set.file);
    } else {
        const uint32 degree = job.options.degree;
        Edge* lists = alloc_lists(set.count, degree);
        load_given(given[0], set, sorted, 0, border, degree, lists);
        load_given(given[1], set, sorted, border, set.count, degree, lists);
        const GraphRows rows{set.rows, set.count, set.dims, metric};
        run_graph_kernel([&] { job.maker.builder->merge(rows, border, job.options, lists); });
        put_lists(job, lists, set.count, degree, rows_sink(&to));
    }
    end_builder(&job);
    for (GivenGraph& graph : given) end_graph_edges(&graph.edges);
    report_graph_times(tables[0], set.count);
    end_graph_progress();
    return static_cast<Datum>(0);
}
