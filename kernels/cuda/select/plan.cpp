#include "kernels/cuda/select/plan.h"

#include <algorithm>

namespace pgwarp::gpu {

namespace {

// Splits shorter than this cost more to merge than they save.
constexpr uint32_t min_part = 8192;

}  // namespace

SelectPlan plan_select(uint32_t rows, uint32_t length, uint32_t k, uint32_t processors) {
    if (length <= max_short_length) return {SelectMethod::shorts, 1};
    // Split rows where one block per row would not fill the device.
    const uint32_t blocks = k <= 128 ? 4 * processors : 2 * processors;
    const uint32_t wanted = (blocks + rows - 1) / std::max(rows, 1u);
    const uint32_t most = std::max(1u, length / std::max(min_part, 8 * k));
    const uint32_t splits = rows >= blocks / 2 ? 1 : std::clamp(wanted, 1u, most);
    return {SelectMethod::block, splits};
}

}  // namespace pgwarp::gpu
