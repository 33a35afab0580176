// The start of a k-means, the same on the CPU and on devices.
#pragma once

#include "kernels/common.h"
#include "kernels/random.h"

#include <algorithm>
#include <numeric>
#include <utility>
#include <vector>

namespace pgwarp {

// `draws` different numbers below `count`, or all of them in an order of chance where there are
// no more.
inline std::vector<uint32_t> draw_rows(size_t count, size_t draws, uint64_t seed) {
    std::vector<uint32_t> order(count);
    std::iota(order.begin(), order.end(), 0u);
    Random random(seed);
    draws = std::min(draws, count);
    for (size_t i = 0; i < draws; ++i) std::swap(order[i], order[i + random.below(count - i)]);
    order.resize(draws);
    return order;
}

}  // namespace pgwarp
