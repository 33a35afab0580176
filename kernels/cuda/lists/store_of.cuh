// The store of a query.
#pragma once

#include "kernels/cuda/lists/search_state.h"

#include <type_traits>

namespace pgwarp::gpu {

// Whether the queries of a launch are mixed (QueryView::stores). Kernels for the others read the
// store from their arguments, which takes no register.
template <bool mixed>
using StoreOf = std::conditional_t<mixed, StoreView, const StoreView&>;

// `scan`: has the batch's store, and queries.
template <bool mixed, class Scan>
__device__ __forceinline__ StoreOf<mixed> store_of(const Scan& scan, uint32_t query) {
    if constexpr (mixed)
        return scan.queries.stores[query];
    else
        return scan.store;
}

}  // namespace pgwarp::gpu
