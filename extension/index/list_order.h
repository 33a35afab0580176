// The lists of an index by their distance from a query. Where lists have parents, those of the
// nearest parents come first, and further ones only as they are asked for: see
// kernels/list_levels.h.
#pragma once

#include "extension/index/format.h"

extern "C" {
#include "utils/rel.h"
}

namespace pgwarp {

// Arrays are the caller's.
struct ListOrder {
    float* terms;     // (lists), by number: the centroid's part of distances by code; valid for
                      // lists in `order`
    uint32* order;    // (lists): each at most once
    uint32 compared;  // how many `order` has; all, where lists have no parents
    // Where they have: the other parents are parent_order[next_parent ..].
    float* parent_terms;   // (parents)
    uint32* parent_order;  // (parents), nearest first up to sorted_parents
    ParentPlace* parents;  // (parents + 1)
    uint32 next_parent;
    uint32 sorted_parents;
    const float* query;  // in model form
};

// The order's arrays, in the current memory context.
ListOrder alloc_list_order(const MetaPage& meta);

// Begins an order of these arrays. It has all lists if they have no parents, and none otherwise.
void begin_list_order(Relation index, const MetaPage& meta, const float* query, ListOrder* order);
// Adds lists of the nearest parents left, until there are at least `wanted`.
void compare_lists(Relation index, const MetaPage& meta, ListOrder* order, uint32 wanted);
// Puts the nearest lists to the places [begin, end), nearest first; those before stay.
void order_lists(Relation index, const MetaPage& meta, ListOrder* order, uint32 begin, uint32 end);
// The least term of the lists behind `begin`. Compares with lists of parents that may have one up
// to the limit; where all are beyond it, the result only is, too.
float nearest_behind(Relation index, const MetaPage& meta, ListOrder* order, uint32 begin,
                     double limit);
// Of those compared; infinity: there is none.
float nearest_compared(const ListOrder& order, uint32 begin = 0);

}  // namespace pgwarp
