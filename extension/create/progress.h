// Progress of a build in pg_stat_progress_create_index, and its times per phase at DEBUG1.
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
    start = 9,  // waiting for the device, which has been opening since before the sample
    sort = 10,
};

// Begins a phase and resets all counts to zero.
void report_phase(BuildPhase phase);
// Sets one count; `parameter` is one of PROGRESS_*.
void report_progress(int parameter, int64 value);

// begin_build_times() starts timing phases; report_build_times() reports at DEBUG1 how long each
// took.
void begin_build_times();
void report_build_times(Relation index, double rows, const char* executor);

// The access method's callback.
char* ivfpq_phase_name(int64 phase);

}  // namespace pgwarp
