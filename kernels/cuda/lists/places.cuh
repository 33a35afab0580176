// From the number of an entry in the store to its list.
#pragma once

#include "kernels/cuda/lists/search_state.h"

namespace pgwarp::gpu {

struct Place {
    uint32_t list;
    uint32_t position;
};

// The list that holds the entry with this number: the last list that begins at or before it.
__device__ __forceinline__ Place place_of(const StoreView& store, uint32_t entry) {
    uint32_t low = 0, high = store.model.shape.lists;
    while (low + 1 < high) {
        const uint32_t middle = (low + high) / 2;
        if (__ldg(&store.lists[middle].first) <= entry)
            low = middle;
        else
            high = middle;
    }
    return {low, entry - __ldg(&store.lists[low].first)};
}

}  // namespace pgwarp::gpu
