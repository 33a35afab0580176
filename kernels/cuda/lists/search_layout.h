// Sizes and records of a list search, shared by host and device. Plain C++.
#pragma once

#include "kernels/common.h"
#include "kernels/cuda/lists/code_tiles.h"
#include "kernels/list_store.h"
#include "kernels/quantizer.h"

namespace pgwarp::gpu {

// Number of candidates to collect for k results. Candidates from half-precision tables are
// re-scored in float32, which may reorder near ties.
PGWARP_HOST_DEVICE constexpr uint32_t list_candidates(uint32_t k) {
    return k + (k / 8 > 16 ? k / 8 : 16);
}

// Size of a query's table for the scan by list, in units of 16 bytes (see code_tiles.h).
inline size_t half_table_units(const CodeLayout& layout) {
    return size_t{layout.slices} * table_units(layout.width);
}
// Size of a query's table for the scan by query, in floats: (slice)(code)(column).
inline size_t float_table_size(const CodeLayout& layout) {
    return size_t{layout.slices} * codewords * layout.width;
}

// Most queries of a work item of the scan by list.
inline constexpr uint32_t group_queries = 4;

// A query that visits a list.
struct Visit {
    uint32_t query;
    float term;
    // In the bounds pass: where this query's distances for the list begin, and their number.
    uint32_t place;
    uint32_t limit;
};

// Up to four queries and a range of tiles of one list.
struct WorkItem {
    uint32_t list;
    uint32_t first_visit;
    uint32_t visits;
    uint32_t first_tile;
    uint32_t tiles;
};

}  // namespace pgwarp::gpu
