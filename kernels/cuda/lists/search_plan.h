// How a batch is searched, and what memory that takes. Plain C++, so that it is tested where there
// is no device.
#pragma once

#include "kernels/common.h"
#include "kernels/cuda/lists/code_tiles.h"

namespace pgwarp::gpu {

struct SearchShape {
    uint32_t queries;
    uint32_t k;       // the most of any query
    uint32_t probes;  // likewise, at most lists
    uint32_t dims;
    uint32_t lists;
    uint32_t longest_list;  // entries
    uint64_t entries;       // in all lists
    CodeLayout layout;
};

// Where a part of the scratch space lies.
struct Slice {
    size_t at = 0;
    size_t bytes = 0;
};

enum class SearchMethod { by_query, by_list };

// From so many queries on by list, however short the lists, where each is visited by several.
inline constexpr uint32_t always_by_list = 256;

struct SearchPlan {
    SearchMethod method;
    uint32_t part_queries;  // searched at a time
    uint32_t splits;        // by query: blocks a query
    uint32_t candidate_room;
    uint32_t first_room;     // by list: distances a query for its first bound
    uint32_t table_queries;  // by list: whose tables fit the second-level cache together
    uint32_t bins;
    uint32_t tiles_per_item;
    uint64_t items;  // at most

    Slice coarse, probed, terms, tile_starts, tables, keys, counts;
    Slice first_counts, distances, bounds, overflowed;
    Slice ranks, sizes, item_starts, visits, item_table, item_count;
    Slice first_sizes, first_item_starts, cursors;
    Slice answers, answer_counts;
    size_t scratch_bytes;
};

struct DeviceFigures {
    uint32_t processors;
    size_t scratch;  // bytes that a search may use
};

// Throws std::length_error where not even one query at a time fits.
SearchPlan plan_search(const SearchShape& shape, const DeviceFigures& device);

// The same, the method given.
SearchPlan plan_search(const SearchShape& shape, const DeviceFigures& device, SearchMethod method);

}  // namespace pgwarp::gpu
