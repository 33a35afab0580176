// Chooses the selection method for a matrix. Plain C++: tests run it without a device.
#pragma once

#include "kernels/common.h"

namespace pgwarp::gpu {

inline constexpr uint32_t max_select_k = 2048;
inline constexpr uint32_t max_running_k = 2304;

enum class SelectMethod {
    warp,    // WarpSelect: one warp per row
    block,   // BlockSelect: one block per row
    shorts,  // ShortRow: one warp per row, with the row in its registers
};

inline constexpr uint32_t max_short_length = 1024;

struct SelectPlan {
    SelectMethod method;
    uint32_t splits;  // parts of a row; a second pass merges several
};

// Thresholds measured on an H200; see bench/notes/kernels.md. `processors`: multiprocessors.
SelectPlan plan_select(uint32_t rows, uint32_t length, uint32_t k, uint32_t processors);

}  // namespace pgwarp::gpu
