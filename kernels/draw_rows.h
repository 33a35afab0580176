// Draws the rows that start a k-means; the CPU and devices draw the same ones.
#pragma once

#include "kernels/common.h"
#include "kernels/random.h"

#include <algorithm>
#include <numeric>
#include <unordered_map>
#include <utility>
#include <vector>

namespace pgwarp {

// `draws` distinct numbers below `count`; where count <= draws, all of them in random order.
inline std::vector<uint32_t> draw_rows(size_t count, size_t draws, uint64_t seed) {
    std::vector<uint32_t> order(count);
    std::iota(order.begin(), order.end(), 0u);
    Random random(seed);
    draws = std::min(draws, count);
    for (size_t i = 0; i < draws; ++i) std::swap(order[i], order[i + random.below(count - i)]);
    order.resize(draws);
    return order;
}

// The same numbers as draw_rows(), with memory in proportion to `draws` instead of `count`.
inline std::vector<uint64_t> draw_few_rows(uint64_t count, size_t draws, uint64_t seed) {
    std::unordered_map<uint64_t, uint64_t> moved;  // positions that hold another number
    const auto at = [&](uint64_t place) {
        const auto found = moved.find(place);
        return found == moved.end() ? place : found->second;
    };
    Random random(seed);
    std::vector<uint64_t> drawn(static_cast<size_t>(std::min<uint64_t>(draws, count)));
    for (size_t i = 0; i < drawn.size(); ++i) {
        const uint64_t other = i + random.below(count - i);
        drawn[i] = at(other);
        moved[other] = at(i);
    }
    return drawn;
}

}  // namespace pgwarp
