#include <algorithm>
#include <iterator>

#include "extension/graph/progress.h"
#include "extension/util/stopwatch.h"
#include "extension/util/signature.h"

extern "C" {
#include "catalog/pg_authid.h"
#include "pgstat.h"
#include "utils/acl.h"
#include "utils/backend_progress.h"
#include "utils/backend_status.h"
#include "utils/builtins.h"
#include "utils/lsyscache.h"
}

namespace pgwarp {

namespace {

// Far from the values of PostgreSQL's own ProgressCommandType.
constexpr auto graph_command = static_cast<ProgressCommandType>(7741);

enum Parameter { stage_number, stage_done, stage_total, parts_done, parts_total };

bool reporting() {
    return MyBEEntry && MyBEEntry->st_progress_command == graph_command;
}

const char* stage_name(int64 stage) {
    switch (static_cast<GraphStage>(stage)) {
        case GraphStage::reading:
            return "reading rows";
        case GraphStage::start:
            return "growing trees";
        case GraphStage::descent:
            return "descending";
        case GraphStage::exact:
            return "comparing all pairs";
        case GraphStage::distances:
            return "computing distances";
        case GraphStage::searching:
            return "searching the index";
        case GraphStage::writing:
            return "writing edges";
        case GraphStage::edges:
            return "reading edges";
        case GraphStage::keys:
            return "comparing keys";
        case GraphStage::opening:
            return "opening a device";
    }
    return "initializing";
}

// Times of the graph that this process builds.
struct GraphTimes {
    double begin;
    int64 stage;  // 0: before the first
    double stage_begin;
    double seconds[static_cast<int64>(GraphStage::opening) + 1];
};
GraphTimes times;

void enter_stage(int64 stage) {
    if (stage == times.stage) return;
    const double now = seconds_now();
    times.seconds[times.stage] += now - times.stage_begin;
    times.stage = stage;
    times.stage_begin = now;
}

bool may_see(Oid user) {
    return has_privs_of_role(GetUserId(), user) ||
           has_privs_of_role(GetUserId(), ROLE_PG_READ_ALL_STATS);
}

}  // namespace

void begin_graph_progress(Oid table) {
    times = {};
    times.begin = times.stage_begin = seconds_now();
    if (MyBEEntry && MyBEEntry->st_progress_command == PROGRESS_COMMAND_INVALID)
        pgstat_progress_start_command(graph_command, table);
}

void end_graph_progress() {
    if (reporting()) pgstat_progress_end_command();
}

void report_graph_times(Oid table, Size rows) {
    enter_stage(0);
    const double all = times.stage_begin - times.begin;
    StringInfoData shares;
    initStringInfo(&shares);
    for (Size i = 0; i < std::size(times.seconds); ++i)
        if (times.seconds[i] > 0)
            appendStringInfo(&shares, "%s%s %.3f s (%.0f%%)", shares.len > 0 ? ", " : "",
                             stage_name(static_cast<int64>(i)), times.seconds[i],
                             100 * times.seconds[i] / std::max(all, 1e-9));
    const char* name = get_rel_name(table);
    ereport(DEBUG1,
            (errmsg_internal("graph of \"%s\": %zu rows in %.3f s", name ? name : "?", rows, all),
             errdetail_internal("%s", shares.data)));
    pfree(shares.data);
}

void report_graph_stage(GraphStage stage, int64 done, int64 total) {
    enter_stage(static_cast<int64>(stage));
    if (!reporting()) return;
    const int parameters[] = {stage_number, stage_done, stage_total};
    const int64 values[] = {static_cast<int64>(stage), done, total};
    pgstat_progress_update_multi_param(lengthof(parameters), parameters, values);
}

void report_graph_parts(int64 done, int64 total) {
    if (!reporting()) return;
    const int parameters[] = {parts_done, parts_total};
    const int64 values[] = {done, total};
    pgstat_progress_update_multi_param(lengthof(parameters), parameters, values);
}

GraphProgress graph_progress() {
    return [](GraphPhase phase, uint64_t done, uint64_t total) {
        GraphStage stage = GraphStage::start;
        switch (phase) {
            case GraphPhase::start:
                break;
            case GraphPhase::descent:
                stage = GraphStage::descent;
                break;
            case GraphPhase::exact:
                stage = GraphStage::exact;
                break;
            case GraphPhase::distances:
                stage = GraphStage::distances;
                break;
        }
        report_graph_stage(stage, static_cast<int64>(done), static_cast<int64>(total));
    };
}

}  // namespace pgwarp

using namespace pgwarp;

// The rows of pg_stat_progress_knn_graph.
PGWARP_FUNCTION(pgwarp_graph_progress) {
    check_signature(fcinfo, 0, 8);
    compat_init_materialized(fcinfo);
    const ReturnSetInfo* result = reinterpret_cast<ReturnSetInfo*>(fcinfo->resultinfo);
    const int backends = pgstat_fetch_stat_numbackends();
    for (int i = 1; i <= backends; ++i) {
        const LocalPgBackendStatus* local = compat_local_status(i);
        if (!local || local->backendStatus.st_progress_command != graph_command) continue;
        const PgBackendStatus& status = local->backendStatus;
        constexpr int columns = 8;
        Datum values[columns] = {};
        bool nulls[columns] = {};
        values[0] = Int32GetDatum(status.st_procpid);
        values[1] = ObjectIdGetDatum(status.st_databaseid);
        const bool visible = may_see(status.st_userid);
        for (int c = 2; c < columns; ++c) nulls[c] = !visible;
        if (visible) {
            values[2] = ObjectIdGetDatum(status.st_progress_command_target);
            values[3] = CStringGetTextDatum(stage_name(status.st_progress_param[stage_number]));
            for (int c = 4; c < columns; ++c)
                values[c] = Int64GetDatum(status.st_progress_param[c - 4 + stage_done]);
        }
        tuplestore_putvalues(result->setResult, result->setDesc, values, nulls);
    }
    return static_cast<Datum>(0);
}
