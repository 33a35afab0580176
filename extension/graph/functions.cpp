// knn_graph: the k nearest neighbors of every row of a table.

#include <algorithm>
#include <cstring>

#include "extension/graph/functions.h"
#include "extension/limits.h"
#include "extension/graph/index.h"
#include "extension/graph/metric.h"
#include "extension/graph/progress.h"
#include "extension/graph/table.h"
#include "extension/util/signature.h"

extern "C" {
#include "utils/builtins.h"
#include "utils/guc.h"
#include "utils/memutils.h"
}

namespace pgwarp {

void refuse_null_arguments(FunctionCallInfo fcinfo, const char* const* names, int count) {
    for (int i = 0; i < count; ++i)
        if (PG_ARGISNULL(i))
            ereport(ERROR, (errcode(ERRCODE_NULL_VALUE_NOT_ALLOWED),
                            errmsg("%s must not be null", names[i])));
}

char* text_argument(FunctionCallInfo fcinfo, int number) {
    return text_to_cstring(PG_GETARG_TEXT_PP(number));
}

void check_neighbors(int32 k) {
    if (k < 1 || k > most_neighbors)
        ereport(ERROR, (errcode(ERRCODE_INVALID_PARAMETER_VALUE),
                        errmsg("k must be between 1 and %d", most_neighbors)));
}

uint32 wanted_neighbors(FunctionCallInfo fcinfo, int number, uint32 otherwise) {
    const int32 k = PG_ARGISNULL(number) ? static_cast<int32>(std::max(otherwise, 1u))
                                         : PG_GETARG_INT32(number);
    check_neighbors(k);
    return static_cast<uint32>(k);
}

namespace {

uint32 knob(FunctionCallInfo fcinfo, int number, const char* name, int32 most, uint32 otherwise) {
    if (PG_ARGISNULL(number)) return otherwise;
    const int32 value = PG_GETARG_INT32(number);
    if (value < 1 || value > most)
        ereport(ERROR, (errcode(ERRCODE_INVALID_PARAMETER_VALUE),
                        errmsg("%s must be between 1 and %d", name, most)));
    return static_cast<uint32>(value);
}

}  // namespace

GraphJob make_graph_job(FunctionCallInfo fcinfo, Metric metric, int32 k, const GraphKnobs& knobs) {
    check_neighbors(k);
    GraphJob job = {};
    job.metric = metric;
    job.k = static_cast<uint32>(k);
    job.options = DescentOptions::for_neighbors(job.k);
    job.options.samples = knob(fcinfo, knobs.samples, "samples", 256, job.options.samples);
    // Samples are drawn from the lists, so lists must be long enough.
    job.options.degree = std::max(job.options.degree, 2 * job.options.samples);
    job.own_samples = !PG_ARGISNULL(knobs.samples);
    job.own_iterations = !PG_ARGISNULL(knobs.iterations);
    job.options.iterations =
        knob(fcinfo, knobs.iterations, "iterations", 1000, job.options.iterations);
    job.options.seed = static_cast<uint64>(static_cast<int64>(PG_GETARG_INT32(knobs.seed)));
    job.threads = graph_threads();
    return job;
}

namespace {

GraphMethod method_called(const char* name) {
    if (strcmp(name, "auto") == 0) return GraphMethod::automatic;
    if (strcmp(name, "exact") == 0) return GraphMethod::exact;
    if (strcmp(name, "nn_descent") == 0) return GraphMethod::nn_descent;
    if (strcmp(name, "ivfpq") == 0) return GraphMethod::ivfpq;
    ereport(ERROR, (errcode(ERRCODE_INVALID_PARAMETER_VALUE), errmsg("unknown method \"%s\"", name),
                    errhint("Methods are auto, exact, nn_descent and ivfpq.")));
    return GraphMethod::automatic;
}

// One core compares all pairs of this many rows in about a second.
constexpr Size rows_for_exact = 10000;

bool choose_exact(GraphMethod method, const GraphSet& set) {
    if (method != GraphMethod::automatic) return method == GraphMethod::exact;
    const bool exact = set.count <= rows_for_exact;
    ereport(NOTICE, (errmsg("method %s for a graph of %zu rows", exact ? "exact" : "nn_descent",
                            set.count)));
    return exact;
}

// Refuses a knob that the method would ignore.
void refuse_knob(FunctionCallInfo fcinfo, int number, const char* name, const char* method,
                 bool used) {
    if (!used && !PG_ARGISNULL(number))
        ereport(ERROR, (errcode(ERRCODE_INVALID_PARAMETER_VALUE),
                        errmsg("%s is for method %s only", name, method)));
}

// Sets ivfpq.probes until AtEOXact_GUC() with the level this returns.
int set_probes(uint32 probes) {
    const int level = NewGUCNestLevel();
    if (probes > 0)
        set_config_option("ivfpq.probes", psprintf("%u", probes), PGC_USERSET, PGC_S_SESSION,
                          GUC_ACTION_SAVE, true, 0, false);
    return level;
}

// Row numbers by key; null: rows are in this order already.
uint32* order_by_key(const GraphSet& set) {
    if (std::is_sorted(set.keys, set.keys + set.count)) return nullptr;
    KeyedRow* sorted = sort_by_key(set);
    uint32* order = static_cast<uint32*>(
        MemoryContextAllocHuge(CurrentMemoryContext, set.count * sizeof(uint32)));
    for (Size i = 0; i < set.count; ++i) order[i] = sorted[i].row;
    pfree(sorted);
    return order;
}

}  // namespace

GraphCall read_graph_call(FunctionCallInfo fcinfo, int first) {
    const int probes = first + 8;
    const GraphKnobs knobs = {first + 6, first + 7, first + 9};
    if (PG_ARGISNULL(knobs.seed))
        ereport(ERROR, (errcode(ERRCODE_NULL_VALUE_NOT_ALLOWED), errmsg("seed must not be null")));
    GraphCall call = {};
    call.method = method_called(text_argument(fcinfo, first + 4));
    const bool by_index = call.method == GraphMethod::ivfpq;
    refuse_knob(fcinfo, probes, "probes", "ivfpq", by_index);
    const bool may_descend =
        call.method == GraphMethod::nn_descent || call.method == GraphMethod::automatic;
    refuse_knob(fcinfo, knobs.samples, "samples", "nn_descent", may_descend);
    refuse_knob(fcinfo, knobs.iterations, "iterations", "nn_descent", may_descend);
    const Metric metric = graph_metric_called(text_argument(fcinfo, first + 5));
    call.job = make_graph_job(fcinfo, metric, PG_GETARG_INT32(first + 3), knobs);
    call.probes = knob(fcinfo, probes, "probes", max_lists, 0);
    call.columns = {PG_GETARG_OID(first), NameStr(*PG_GETARG_NAME(first + 2)),
                    NameStr(*PG_GETARG_NAME(first + 1))};
    return call;
}

void make_graph(GraphCall* call, EdgeWriter* writer, bool in_order) {
    const TableColumns& columns = call->columns;
    GraphJob* job = &call->job;
    begin_graph_progress(columns.table);
    if (call->method == GraphMethod::ivfpq) {
        const int level = set_probes(call->probes);
        build_graph_by_index({columns, job->metric, job->k, writer});
        AtEOXact_GUC(true, level);
    } else {
        GraphSet set =
            read_graph_set(columns, job->metric, {job->options.degree, job->k, job->threads});
        report_left_out(set);
        const bool exact = choose_exact(call->method, set);
        start_builder(job, set.count, set.dims, exact);
        EdgeRows rows{writer, &set};
        EdgeSink sink = rows_sink(&rows);
        if (in_order) sink.order = order_by_key(set);
        build_graph(*job, &set, exact, sink);
        end_builder(job);
        if (set.file) BufFileClose(set.file);
        report_graph_times(columns.table, set.count);
    }
    end_graph_progress();
}

}  // namespace pgwarp

using namespace pgwarp;

PGWARP_FUNCTION(pgwarp_knn_graph) {
    check_signature(fcinfo, 10, 4);
    constexpr const char* names[] = {"table", "key", "vector_column", "k", "method", "metric"};
    refuse_null_arguments(fcinfo, names, lengthof(names));
    GraphCall call = read_graph_call(fcinfo, 0);
    compat_init_materialized(fcinfo);
    const auto* result = reinterpret_cast<ReturnSetInfo*>(fcinfo->resultinfo);
    call.columns.names = names_in_result(result, 0, graph_memory());
    make_graph(&call, open_edge_writer(result, call.columns.names), false);
    return static_cast<Datum>(0);
}
