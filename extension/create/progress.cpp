#include <iterator>

#include "extension/create/progress.h"
#include "extension/util/stopwatch.h"

extern "C" {
#include "lib/stringinfo.h"
#include "pgstat.h"
#include "utils/backend_progress.h"
#include "utils/backend_status.h"
}

namespace pgwarp {

namespace {

// VACUUM trains and workers encode, too: they must not overwrite other progress entries.
bool reporting() {
    return MyBEEntry && MyBEEntry->st_progress_command == PROGRESS_COMMAND_CREATE_INDEX;
}

constexpr BuildPhase phases[] = {
    BuildPhase::sample,      BuildPhase::start,   BuildPhase::train_lists,
    BuildPhase::train_codes, BuildPhase::encode,  BuildPhase::sort,
    BuildPhase::write,       BuildPhase::measure, BuildPhase::log};

const char* phase_name(BuildPhase phase) {
    switch (phase) {
        case BuildPhase::sample:
            return "sampling rows";
        case BuildPhase::train_lists:
            return "training lists";
        case BuildPhase::train_codes:
            return "training codes";
        case BuildPhase::encode:
            return "encoding rows";
        case BuildPhase::write:
            return "writing lists";
        case BuildPhase::measure:
            return "measuring recall";
        case BuildPhase::log:
            return "logging pages";
        case BuildPhase::start:
            return "starting a device";
        case BuildPhase::sort:
            return "sorting entries";
    }
    return nullptr;
}

struct BuildTimes {
    double begin;
    double phase_begin;
    int phase;  // an index into `phases`, or -1
    double seconds[std::size(phases)];
};
BuildTimes times;

void end_phase() {
    const double at = seconds_now();
    if (times.phase >= 0) times.seconds[times.phase] += at - times.phase_begin;
    times.phase_begin = at;
}

}  // namespace

void begin_build_times() {
    times = {};
    times.begin = seconds_now();
    times.phase = -1;
}

void report_build_times(Relation index, double rows, const char* executor) {
    end_phase();
    times.phase = -1;
    const double all = times.phase_begin - times.begin;
    StringInfoData shares;
    initStringInfo(&shares);
    for (Size i = 0; i < std::size(phases); ++i)
        if (times.seconds[i] > 0)
            appendStringInfo(&shares, "%s%s %.3f s (%.0f%%)", shares.len > 0 ? ", " : "",
                             phase_name(phases[i]), times.seconds[i],
                             100 * times.seconds[i] / Max(all, 1e-9));
    ereport(DEBUG1, (errmsg_internal("index \"%s\": %.0f rows in %.3f s on %s",
                                     RelationGetRelationName(index), rows, all, executor),
                     errdetail_internal("%s", shares.data)));
    pfree(shares.data);
}

void report_phase(BuildPhase phase) {
    end_phase();
    for (Size i = 0; i < std::size(phases); ++i)
        if (phases[i] == phase) times.phase = static_cast<int>(i);
    if (!reporting()) return;
    const int params[] = {PROGRESS_CREATEIDX_SUBPHASE, PROGRESS_CREATEIDX_TUPLES_TOTAL,
                          PROGRESS_CREATEIDX_TUPLES_DONE, PROGRESS_SCAN_BLOCKS_TOTAL,
                          PROGRESS_SCAN_BLOCKS_DONE};
    const int64 values[] = {static_cast<int64>(phase), 0, 0, 0, 0};
    pgstat_progress_update_multi_param(lengthof(params), params, values);
}

void report_progress(int parameter, int64 value) {
    if (reporting()) pgstat_progress_update_param(parameter, value);
}

char* ivfpq_phase_name(int64 phase) {
    if (phase == PROGRESS_CREATEIDX_SUBPHASE_INITIALIZE) return pstrdup("initializing");
    const char* name = phase_name(static_cast<BuildPhase>(phase));
    return name ? pstrdup(name) : nullptr;
}

}  // namespace pgwarp
