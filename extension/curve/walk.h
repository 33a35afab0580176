// A walk over the nearest lists of a query of the recall curve. It keeps the distances that are
// less than the farthest of the query's neighbors, which are few, and only counts the other
// entries.
#pragma once

#include <algorithm>
#include <limits>

#include "kernels/list_scan.h"
#include "extension/index/page.h"
#include "extension/index/tid.h"

namespace pgwarp {

// The nearest distances of a walk, for radii.
struct NearDistances {
    Size most;     // kept
    Size count;    // in `items`
    float bound;   // not below this: farther than `most` others
    float* items;  // (2 most)

    void init(Size wanted) {
        most = wanted;
        count = 0;
        bound = std::numeric_limits<float>::infinity();
        items = static_cast<float*>(palloc(2 * most * sizeof(float)));
    }
    void add(float distance) {
        if (!(distance < bound)) return;
        items[count++] = distance;
        if (count < 2 * most) return;
        std::nth_element(items, items + most - 1, items + count);
        count = most;
        bound = items[most - 1];
    }
    // The distance of the k-th nearest so far, k <= most; infinity: there are fewer.
    float distance_of(Size k) {
        if (count < k) return std::numeric_limits<float>::infinity();
        std::nth_element(items, items + k - 1, items + count);
        return items[k - 1];
    }
};

inline constexpr uint32 outside_rows = 10;  // wanted of rows that do not see their own list
// The nearest entries of all lists but the nearest one, as a heap, and in which list each is.
struct OutsideEntries {
    struct Entry {
        float distance;
        uint32 list_rank;
    };
    Entry items[outside_rows];
    uint32 count;

    static bool nearer(const Entry& a, const Entry& b) { return a.distance < b.distance; }
    // The distance of the last, if there are as many.
    float radius() const {
        return count < outside_rows ? std::numeric_limits<float>::infinity() : items[0].distance;
    }
    void add(const Entry& entry) {
        if (!(entry.distance < radius())) return;
        if (count == outside_rows)
            std::pop_heap(items, items + count, nearer);
        else
            ++count;
        items[count - 1] = entry;
        std::push_heap(items, items + count, nearer);
    }
};

struct CurveWalk {
    const float* table;
    float bound;  // no greater distances are kept
    float list_term;
    uint64 self;
    Size entries;  // seen
    struct Kept {
        float distance;
        uint64 tid;
    };
    Kept* items;  // (kept), list after list
    Size kept;
    Size room;              // allocated
    float* page_distances;  // of all entries of one page
    NearDistances near;
    uint32 list_rank;
    OutsideEntries outside;

    void make_room(Size more) {
        if (kept + more <= room) return;
        room = 2 * room + more;
        items = static_cast<Kept*>(repalloc_huge(items, room * sizeof(Kept)));
    }
    void add(float distance, uint64 tid) {
        near.add(distance);
        if (list_rank > 0) outside.add({distance, list_rank});
        if (distance <= bound) items[kept++] = {distance, tid};
    }
};

inline void visit_page(void* state, uint32, Page page, const EntryLayout& layout) {
    CurveWalk* walk = static_cast<CurveWalk*>(state);
    const uint32 count = page_tail(page)->count;
    const ItemPointerData* tids = page_tids(page, layout);
    walk->entries += count;
    walk->make_room(count);
    scan_codes(walk->table, layout.m,
               {page_codes(page), layout.capacity, count, page_offsets(page, layout)},
               walk->list_term, walk->page_distances);
    const float farthest = std::max({walk->bound, walk->near.bound, walk->outside.radius()});
    for (uint32 i = 0; i < count; ++i) {
        const float distance = walk->page_distances[i];
        if (!(distance <= farthest) || tid_number(tids[i]) == walk->self) continue;
        walk->add(distance, tid_number(tids[i]));
    }
}

}  // namespace pgwarp
