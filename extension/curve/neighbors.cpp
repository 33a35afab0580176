#include <algorithm>
#include <cmath>
#include <limits>

#include "extension/curve/neighbors.h"

extern "C" {
#include "utils/memutils.h"
}

namespace pgwarp {

namespace {

template <typename T>
T* alloc_array(Size count) {
    return static_cast<T*>(MemoryContextAllocHuge(CurrentMemoryContext, count * sizeof(T)));
}

// Nearest first; what has no distance is padding. Returns how many.
Size merge(const Neighbor* first, Size of_participant, uint32 participants, uint32 kept,
           uint64 self, Neighbor* merged) {
    Size count = 0;
    for (uint32 p = 0; p < participants; ++p) {
        const Neighbor* found = first + p * of_participant;
        for (uint32 i = 0; i < kept; ++i)
            if (!std::isinf(found[i].distance) && found[i].id != self) merged[count++] = found[i];
    }
    std::sort(merged, merged + count, [](const Neighbor& a, const Neighbor& b) {
        return a.distance < b.distance || (a.distance == b.distance && a.id < b.id);
    });
    return count;
}

const Neighbor* copy_nearest(const Neighbor* merged, Size count, uint32 room) {
    Neighbor* nearest = alloc_array<Neighbor>(room);
    for (Size i = 0; i < room; ++i) nearest[i] = i < count ? merged[i] : Neighbor{0, 0};
    return nearest;
}

}  // namespace

void clear_neighbors(uint32 queries, Neighbor* neighbors) {
    std::fill_n(neighbors, kept_neighbors(queries),
                Neighbor{std::numeric_limits<float>::infinity(), 0});
}

void add_neighbors(Executor* executor, const ComparedRows& compared, Neighbor* neighbors) {
    if (compared.query_count == 0 || compared.count == 0) return;
    const auto search = [&](uint32 queries, uint32 k, Neighbor* nearest) {
        executor->exact_search({compared.queries, queries, compared.rows, compared.count,
                                compared.tids, compared.dims, compared.metric, k, nearest});
    };
    search(compared.query_count, neighbors_kept, neighbors);
    search(wide_queries(compared.query_count), wide_neighbors_kept,
           neighbors + wide_begin(compared.query_count));
}

CurveQuery* merge_neighbors(const CurveInput& input, const Neighbor* neighbors,
                            uint32 participants) {
    const Size each = kept_neighbors(input.count);
    const Neighbor* wide = neighbors + wide_begin(input.count);
    CurveQuery* queries = alloc_array<CurveQuery>(input.count + 1);
    Neighbor* merged = alloc_array<Neighbor>(Size{participants} * wide_neighbors_kept);
    for (uint32 q = 0; q < input.count; ++q) {
        const uint64 self = input.tids[q];
        queries[q] = {self, input.vectors[q], nullptr};
        const bool is_wide = q < wide_queries(input.count);
        if (is_wide) queries[q].room = most_curve_neighbors;
        const uint32 kept = is_wide ? wide_neighbors_kept : neighbors_kept;
        const Size count = merge((is_wide ? wide : neighbors) + Size{q} * kept, each, participants,
                                 kept, self, merged);
        queries[q].neighbors = copy_nearest(merged, count, queries[q].room);
    }
    pfree(merged);
    return queries;
}

}  // namespace pgwarp
