// Who does the arithmetic of builds and of other heavy work: this process's CPU, or a device that
// it opens for the time.
#pragma once

#include "kernels/executor.h"
#include "extension/compat.h"

namespace pgwarp {

struct BuildExecutor {
    Executor* executor;
    // A device: rows are handed to it in large blocks, by one process. Else every process that
    // takes part in the build has an executor of its own.
    bool device;
    struct BuildDevice* owned;
};

// By pgwarp.build_executor. `unfit`, where not null, says why no device can do it. `work` is about
// how many multiplications it takes: little work does not wait for a device. `threads` is for the
// CPU. What it opens ends with the current memory context, or with close_build_executor().
BuildExecutor open_build_executor(const char* unfit, double work, int threads);
// Warns where a device failed on the way.
void close_build_executor(BuildExecutor* executor);

}  // namespace pgwarp
