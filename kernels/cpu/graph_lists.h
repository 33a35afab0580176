// A row's list of neighbors during construction.
#pragma once

#include "kernels/knn_graph.h"

#include <algorithm>
#include <limits>

namespace pgwarp {

// Flag beside the row's number: the neighbor has not been sampled yet (NEW in the paper).
inline constexpr uint32_t fresh = 0x80000000;
inline constexpr uint32_t row_part = ~fresh;

inline constexpr float infinitely_far = std::numeric_limits<float>::infinity();

inline bool nearer(const Edge& a, const Edge& b) {
    return a.distance < b.distance ||
           (a.distance == b.distance && (a.row & row_part) < (b.row & row_part));
}

// False where the list has the neighbor already, or where it is too far. `edge` may be fresh.
inline bool insert_edge(Edge* list, uint32_t degree, const Edge& edge) {
    if (!nearer(edge, list[degree - 1])) return false;
    const uint32_t row = edge.row & row_part;
    for (uint32_t i = 0; i < degree; ++i)
        if ((list[i].row & row_part) == row) return false;
    Edge* at = std::upper_bound(list, list + degree - 1, edge, nearer);
    std::move_backward(at, list + degree - 1, list + degree);
    *at = edge;
    return true;
}

inline void clear_list(Edge* list, uint32_t degree) {
    std::fill_n(list, degree, Edge{infinitely_far, no_row});
}

}  // namespace pgwarp
