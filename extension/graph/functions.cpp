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

enum class Method { automatic, exact, nn_descent, ivfpq };

Method method_called(const char* name) {
    if (strcmp(name, "auto") == 0) return Method::automatic;
    if (strcmp(name, "exact") == 0) return Method::exact;
    if (strcmp(name, "nn_descent") == 0) return Method::nn_descent;
    if (strcmp(name, "ivfpq") == 0) return Method::ivfpq;
    ereport(ERROR, (errcode(ERRCODE_INVALID_PARAMETER_VALUE), errmsg("unknown method \"%s\"", name),
                    errhint("Methods are auto, exact, nn_descent and ivfpq.")));
    return Method::automatic;
}

// One core compares all pairs of this many rows in about a second.
constexpr Size rows_for_exact = 10000;

bool choose_exact(Method method, const GraphSet& set) {
    if (method != Method::automatic) return method == Method::exact;
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
int set_probes(FunctionCallInfo fcinfo, int number) {
    const int level = NewGUCNestLevel();
    const uint32 probes = knob(fcinfo, number, "probes", max_lists, 0);
    if (probes > 0)
        set_config_option("ivfpq.probes", psprintf("%u", probes), PGC_USERSET, PGC_S_SESSION,
                          GUC_ACTION_SAVE, true, 0, false);
    return level;
}

}  // namespace

}  // namespace pgwarp

using namespace pgwarp;

PGWARP_FUNCTION(pgwarp_knn_graph) {
    check_signature(fcinfo, 10, 4);
    constexpr const char* names[] = {"table", "key", "vector_column", "k", "method", "metric"};
    refuse_null_arguments(fcinfo, names, lengthof(names));
    constexpr int probes = 8;
    constexpr GraphKnobs knobs = {6, 7, 9};
    if (PG_ARGISNULL(knobs.seed))
        ereport(ERROR, (errcode(ERRCODE_NULL_VALUE_NOT_ALLOWED), errmsg("seed must not be null")));
    const Oid table = PG_GETARG_OID(0);
    const Method method = method_called(text_argument(fcinfo, 4));
    refuse_knob(fcinfo, probes, "probes", "ivfpq", method == Method::ivfpq);
    const bool may_descend = method == Method::nn_descent || method == Method::automatic;
    refuse_knob(fcinfo, knobs.samples, "samples", "nn_descent", may_descend);
    refuse_knob(fcinfo, knobs.iterations, "iterations", "nn_descent", may_descend);
    const Metric metric = graph_metric_called(text_argument(fcinfo, 5));
    GraphJob job = make_graph_job(fcinfo, metric, PG_GETARG_INT32(3), knobs);
    TableColumns columns = {table, NameStr(*PG_GETARG_NAME(2)), NameStr(*PG_GETARG_NAME(1))};
    compat_init_materialized(fcinfo);
    const auto* result = reinterpret_cast<ReturnSetInfo*>(fcinfo->resultinfo);
    columns.names = names_in_result(result, 0, graph_memory());

    begin_graph_progress(table);
    if (method == Method::ivfpq) {
        const int level = set_probes(fcinfo, probes);
        build_graph_by_index({columns, metric, job.k, result});
        AtEOXact_GUC(true, level);
    } else {
        GraphSet set = read_graph_set(columns, metric, {job.options.degree, job.k, job.threads});
        report_left_out(set);
        const bool exact = choose_exact(method, set);
        start_builder(&job, set.count, set.dims, exact);
        EdgeRows rows{open_edge_writer(result, columns.names), &set};
        build_graph(job, &set, exact, rows_sink(&rows));
        end_builder(&job);
        if (set.file) BufFileClose(set.file);
        report_graph_times(table, set.count);
    }
    end_graph_progress();
    return static_cast<Datum>(0);
}
