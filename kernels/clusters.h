// What every k-means needs, on the CPU and on devices: a start drawn with a seed, and work for
// clusters that nobody belongs to.
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

// Calls split(from, to) for each cluster without members: it takes half of the largest one. The
// two centroids stand a little apart on either side of the old one, and the next assignment
// divides the members. On constant data they fall together again, which is harmless.
template <typename Split>
void split_into_empty(std::vector<size_t> sizes, Split split) {
    for (size_t empty = 0; empty < sizes.size(); ++empty) {
        if (sizes[empty] != 0) continue;
        const auto largest =
            static_cast<size_t>(std::max_element(sizes.begin(), sizes.end()) - sizes.begin());
        if (sizes[largest] < 2) return;
        split(largest, empty);
        sizes[empty] = sizes[largest] / 2;
        sizes[largest] -= sizes[empty];
    }
}

// One coordinate of such a split.
inline void split_coordinate(uint32_t dimension, float& from, float& to) {
    constexpr float apart = 1.0f / 1024;
    const float sign = (dimension % 2) ? -apart : apart;
    to = from * (1 + sign);
    from = from * (1 - sign);
}

}  // namespace pgwarp
