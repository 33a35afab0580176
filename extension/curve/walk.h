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

// An entry, and the rank of its list.
struct WalkedEntry {
    float distance;
    uint32 list_rank;

    bool operator<(const WalkedEntry& other) const { return distance < other.distance; }
};

// The nearest entries of a walk.
struct NearEntries {
    Size most;           // kept
    Size count;          // in `items`
    float bound;         // not below this: farther than `most` others
    WalkedEntry* items;  // (2 most)

    void init(Size wanted) {
        most = wanted;
        count = 0;
        bound = std::numeric_limits<float>::infinity();
        items = static_cast<WalkedEntry*>(palloc(2 * most * sizeof(WalkedEntry)));
    }
    void add(const WalkedEntry& entry) {
        if (!(entry.distance < bound)) return;
        items[count++] = entry;
        if (count < 2 * most) return;
        std::nth_element(items, items + most - 1, items + count);
        count = most;
        bound = items[most - 1].distance;
    }
    // The distance of the k-th nearest so far, k <= most; infinity: there are fewer. The first k
    // items are the k nearest then.
    float distance_of(Size k) {
        if (count < k) return std::numeric_limits<float>::infinity();
        std::nth_element(items, items + k - 1, items + count);
        return items[k - 1].distance;
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
    uint32 list_rank;
    NearEntries near;
    NearEntries outside;  // the nearest list

    void make_room(Size more) {
        if (kept + more <= room) return;
        room = 2 * room + more;
        items = static_cast<Kept*>(repalloc_huge(items, room * sizeof(Kept)));
    }
    void add(float distance, uint64 tid) {
        near.add({distance, list_rank});
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
    const float farthest = std::max({walk->bound, walk->near.bound, walk->outside.bound});
    for (uint32 i = 0; i < count; ++i) {
        const float distance = walk->page_distances[i];
        if (!(distance <= farthest) || tid_number(tids[i]) == walk->self) continue;
        walk->add(distance, tid_number(tids[i]));
    }
}

}  // namespace pgwarp
