// similar_pairs: all pairs of rows of a table that are within a distance of each other.

#include <cstring>

#include "extension/graph/functions.h"
#include "extension/graph/metric.h"
#include "extension/graph/pairs.h"
#include "extension/graph/pairs_index.h"
#include "extension/graph/progress.h"
#include "extension/graph/table.h"
#include "extension/util/signature.h"

extern "C" {
#include "utils/guc.h"
}

namespace pgwarp {

namespace {

bool uses_index(const char* method) {
    if (strcmp(method, "ivfpq") == 0) return true;
    if (strcmp(method, "exact") == 0) return false;
    ereport(ERROR,
            (errcode(ERRCODE_INVALID_PARAMETER_VALUE), errmsg("unknown method \"%s\"", method),
             errhint("Methods are exact and ivfpq.")));
    return false;
}

// Sets ivfpq.target_recall until AtEOXact_GUC() with the level this returns.
int set_recall(FunctionCallInfo fcinfo, int number) {
    const int level = NewGUCNestLevel();
    if (PG_ARGISNULL(number)) return level;
    set_config_option("ivfpq.target_recall", psprintf("%.17g", PG_GETARG_FLOAT8(number)),
                      PGC_USERSET, PGC_S_SESSION, GUC_ACTION_SAVE, true, 0, false);
    return level;
}

void check_recall(FunctionCallInfo fcinfo, int number, bool by_index) {
    if (PG_ARGISNULL(number)) return;
    if (!by_index)
        ereport(ERROR, (errcode(ERRCODE_INVALID_PARAMETER_VALUE),
                        errmsg("recall is for method ivfpq only"),
                        errdetail("Method exact finds all pairs.")));
    const double recall = PG_GETARG_FLOAT8(number);
    if (!(recall > 0 && recall <= 1))
        ereport(ERROR, (errcode(ERRCODE_INVALID_PARAMETER_VALUE),
                        errmsg("recall must be greater than 0 and at most 1")));
}

struct Writing {
    PairWriter* writer;
    const GraphSet* set;
};

void write_rows(void* state, const RowPair& pair) {
    const auto* to = static_cast<const Writing*>(state);
    write_pair(to->writer, to->set->keys[pair.first], to->set->keys[pair.second],
               edge_operator_distance(to->set->metric, pair.distance));
}

}  // namespace

}  // namespace pgwarp

using namespace pgwarp;

PGWARP_FUNCTION(pgwarp_similar_pairs) {
    check_signature(fcinfo, 7, 3);
    constexpr const char* names[] = {"table",        "key",    "vector_column",
                                     "max_distance", "metric", "method"};
    refuse_null_arguments(fcinfo, names, lengthof(names));
    constexpr int recall = 6;
    const Oid table = PG_GETARG_OID(0);
    const Metric metric = graph_metric_called(text_argument(fcinfo, 4));
    const PairLimit limit = make_pair_limit(metric, PG_GETARG_FLOAT8(3));
    const bool by_index = uses_index(text_argument(fcinfo, 5));
    check_recall(fcinfo, recall, by_index);
    TableColumns columns = {table, NameStr(*PG_GETARG_NAME(2)), NameStr(*PG_GETARG_NAME(1))};
    compat_init_materialized(fcinfo);
    const auto* result = reinterpret_cast<ReturnSetInfo*>(fcinfo->resultinfo);
    columns.names = names_in_result(result, 0, graph_memory());

    begin_graph_progress(table);
    PairWriter* writer = open_pair_writer(result, columns.names);
    if (by_index) {
        const int level = set_recall(fcinfo, recall);
        find_pairs_by_index(columns, limit, writer);
        AtEOXact_GUC(true, level);
    } else {
        GraphSet set = read_pair_set(columns, metric);
        Writing writing = {writer, &set};
        find_similar_pairs(&set, limit, {write_rows, &writing});
        if (set.file) BufFileClose(set.file);
        report_graph_times(table, set.count);
    }
    end_graph_progress();
    return static_cast<Datum>(0);
}
