// Sorted distances of several scans in one order, taken in portions.
#pragma once

#include <algorithm>

#include "extension/compat.h"

namespace pgwarp {

struct MergedOrder {
    struct Item {
        double distance;
        int part;

        friend bool operator<(const Item& a, const Item& b) {
            return a.distance < b.distance || (a.distance == b.distance && a.part < b.part);
        }
    };
    int parts;
    Item* items;
    Size count;
    Size at;  // items before it were taken
    // Of each part: how many it has, and those taken last, [begins, ends).
    Size* counts;
    Size* begins;
    Size* ends;

    void take_until(Size end) {
        std::copy_n(ends, parts, begins);
        for (; at < end; ++at) ++ends[items[at].part];
    }
    Size taken_of(int part) const { return ends[part] - begins[part]; }
};

// In the current memory context. distance_of(part, i), i < count_of(part), grows with i.
// count_of() is called once for each part, before all distances.
template <typename CountOf, typename DistanceOf>
MergedOrder merge_parts(int parts, CountOf count_of, DistanceOf distance_of) {
    MergedOrder order = {};
    order.parts = parts;
    order.counts = static_cast<Size*>(palloc0(3 * static_cast<Size>(parts) * sizeof(Size)));
    order.begins = order.counts + parts;
    order.ends = order.begins + parts;
    for (int part = 0; part < parts; ++part) order.count += order.counts[part] = count_of(part);
    order.items = static_cast<MergedOrder::Item*>(MemoryContextAllocHuge(
        CurrentMemoryContext, Max(order.count, Size{1}) * sizeof(MergedOrder::Item)));
    Size at = 0;
    for (int part = 0; part < parts; ++part)
        for (Size i = 0; i < order.counts[part]; ++i)
            order.items[at++] = {distance_of(part, i), part};
    if (parts > 1) std::sort(order.items, order.items + order.count);
    return order;
}

inline void free_order(const MergedOrder& order) {
    pfree(order.items);
    pfree(order.counts);
}

}  // namespace pgwarp
