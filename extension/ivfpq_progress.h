// What pg_stat_progress_create_index shows of a build.
#pragma once

#include "extension/compat.h"

extern "C" {
#include "commands/progress.h"
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
};

// Begins a phase with all counts at zero.
void report_phase(BuildPhase phase);
// One count; a PROGRESS_ parameter.
void report_progress(int parameter, int64 value);

}  // namespace pgwarp
