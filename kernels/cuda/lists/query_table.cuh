// A query's lookup table in shared memory, for scans by query.
#pragma once

#include "kernels/cuda/lists/search_state.h"
#include "kernels/cuda/lists/tables.cuh"

namespace pgwarp::gpu {

// Called by the whole block. Loads up to `resident` slices of a query's table, from `slice` on.
// `scan` has the store, the queries, and their tables or null.
template <int threads, class Scan>
__device__ void load_query_table(const Scan& scan, uint32_t resident, uint32_t query,
                                 uint32_t slice, float* table) {
    const StoreView& store = scan.store;
    const CodeLayout& layout = store.layout;
    const uint32_t slices = min(resident, layout.slices - slice);
    const uint32_t slice_floats = codewords * layout.width;
    if (scan.tables) {
        const size_t first = (size_t{query} * layout.slices + slice) * slice_floats;
        const auto* from = reinterpret_cast<const float4*>(scan.tables + first);
#pragma unroll 8
        for (uint32_t i = threadIdx.x; i < slices * slice_floats / 4; i += threads)
            reinterpret_cast<float4*>(table)[i] = __ldg(from + i);
        return;
    }
    const float* vector = scan.queries.vectors + size_t{query} * store.model.shape.dims;
    for (uint32_t i = threadIdx.x; i < slices * table_units(layout.width); i += threads) {
        const TableUnit unit(slice * table_units(layout.width) + i, layout.width);
        float entry[1][4][2];
        table_entries<1>(store, vector, unit.piece, unit.code, entry);
        const uint32_t row = (unit.piece / layout.width - slice) * codewords + unit.code;
        for (int c = 0; c < 4; ++c)
            *reinterpret_cast<float2*>(table + (row + c) * layout.width +
                                       unit.piece % layout.width) = {entry[0][c][0],
                                                                     entry[0][c][1]};
    }
}

}  // namespace pgwarp::gpu
