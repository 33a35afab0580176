// What pg_stat_progress_create_index shows of a build, and what a build says of itself at its end.
#pragma once

#include "extension/compat.h"

extern "C" {
#include "commands/progress.h"
#include "utils/rel.h"
}

namespace pgwarp {

// 1 is PostgreSQL's own, "initializing".
enum class BuildPhase : int64 {
    sample = 2,
    train_lists = 3,
    train_codes = 4,
    encode = 5,
    write = 6,
    measure = 7,
    log = 8,
    start = 9,  // the rest of what a device takes to start, after the sample
    sort = 10,
};

// Begins a phase with all counts at zero.
void report_phase(BuildPhase phase);
// One count; a PROGRESS_ parameter.
void report_progress(int parameter, int64 value);

// From here on phases are timed; the end of a build tells at DEBUG1 how long each took.
void begin_build_times();
void tell_build_times(Relation index, double rows, const char* executor);

// The access method's callback.
char* ivfpq_phase_name(int64 phase);

}  // namespace pgwarp
