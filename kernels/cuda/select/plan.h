// Which selection a matrix gets. Plain C++, so that it is tested where there is no device.
#pragma once

#include "kernels/common.h"

namespace pgwarp::gpu {

inline constexpr uint32_t max_select_k = 2048;
inline constexpr uint32_t max_running_k = 2304;

enum class SelectMethod {
    warp,    // WarpSelect: a warp a row
    block,   // BlockSelect: a block a row
    shorts,  // ShortRow: a warp a row that fits its registers
};

inline constexpr uint32_t max_short_length = 1024;

struct SelectPlan {
    SelectMethod method;
    uint32_t splits;  // parts a row is cut into; more than one are merged in a second pass
};

// Measured on an H200; see bench/notes/kernels.md. `processors`: of the device.
SelectPlan plan_select(uint32_t rows, uint32_t length, uint32_t k, uint32_t processors);

}  // namespace pgwarp::gpu
