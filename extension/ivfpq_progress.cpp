#include "extension/ivfpq.h"
#include "extension/ivfpq_progress.h"

extern "C" {
#include "pgstat.h"
#include "utils/backend_progress.h"
#include "utils/backend_status.h"
}

namespace pgwarp {

namespace {

// Training also happens in VACUUM and encoding in workers: their progress is not ours to write.
bool reporting() {
    return MyBEEntry && MyBEEntry->st_progress_command == PROGRESS_COMMAND_CREATE_INDEX;
}

}  // namespace

void report_phase(BuildPhase phase) {
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
    switch (static_cast<BuildPhase>(phase)) {
        case BuildPhase::sample:
            return pstrdup("sampling rows");
        case BuildPhase::train_lists:
            return pstrdup("training lists");
        case BuildPhase::train_codes:
            return pstrdup("training codes");
        case BuildPhase::encode:
            return pstrdup("encoding rows");
        case BuildPhase::write:
            return pstrdup("writing lists");
        case BuildPhase::measure:
            return pstrdup("measuring recall");
    }
    return nullptr;
}

}  // namespace pgwarp
