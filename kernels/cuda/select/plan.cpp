#include "kernels/cuda/select/plan.h"

#include <algorithm>

namespace pgwarp::gpu {

namespace {

// A part shorter than this costs more in merging than it saves.
constexpr uint32_t least_part = 8192;

}  // namespace

SelectPlan plan_select(uint32_t rows, uint32_t length, uint32_t k, uint32_t processors) {
    if (length <= max_short_length) return {SelectMethod::shorts, 1};
    // Enough blocks to fill the device, where the rows alone are too few.
    const uint32_t blocks = k <= 128 ? 4 * processors : 2 * processors;
    const uint32_t wanted = (blocks + rows - 1) / std::max(rows, 1u);
    const uint32_t most = std::max(1u, length / std::max(least_part, 8 * k));
    const uint32_t splits = rows >= blocks / 2 ? 1 : std::clamp(wanted, 1u, most);
    return {SelectMethod::block, splits};
}

}  // namespace pgwarp::gpu
