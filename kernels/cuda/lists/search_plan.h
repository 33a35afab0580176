// Plans how a batch is searched, and its scratch memory. Plain C++: tests run it without a device.
#pragma once

#include "kernels/common.h"
#include "kernels/cuda/lists/code_tiles.h"

namespace pgwarp::gpu {

struct SearchShape {
    uint32_t queries;
    uint32_t k;       // largest of any query
    uint32_t probes;  // largest of any query; at most lists
    uint32_t dims;
    uint32_t lists;
    uint32_t longest_list;  // entries
    uint64_t entries;       // in all lists
    CodeLayout layout;
    bool filtered = false;
    bool limited = false;  // queries decide how many lists they take (list_plan.h)
    bool refined = false;
    bool mixed = false;  // lists, longest_list and entries are those of the largest store
};

// Position of an array in the scratch space, in bytes.
struct Slice {
    size_t at = 0;
    size_t bytes = 0;
};

enum class SearchMethod { by_query, by_list };

// From this number of queries on, batches are searched by list even if the lists are short, as long
// as several queries visit each list.
inline constexpr uint32_t always_by_list = 256;

struct SearchPlan {
    SearchMethod method;
    uint32_t part_queries;  // searched at a time
    uint32_t splits;        // by query: blocks per query
    uint32_t candidate_room;
    uint32_t first_room;     // by list: distances per query for its first bound
    uint32_t table_queries;  // by list: queries whose tables together fit the L2 cache
    uint32_t bins;
    uint32_t tiles_per_item;
    uint64_t items;  // at most

    Slice coarse, probed, terms, tile_starts, entry_starts, tables, keys, counts;
    Slice first_counts, distances, bounds, overflowed;
    Slice ranks, sizes, item_starts, visits, item_table, item_count;
    Slice first_sizes, first_item_starts, cursors;
    Slice answers, answer_counts;
    Slice filtered_counts;
    size_t scratch_bytes;
};

struct DeviceFigures {
    uint32_t processors;
    size_t scratch;  // bytes that a search may use
};

// Throws std::length_error if the scratch space does not hold a single query.
SearchPlan plan_search(const SearchShape& shape, const DeviceFigures& device);

// Like the above, with a given method.
SearchPlan plan_search(const SearchShape& shape, const DeviceFigures& device, SearchMethod method);

}  // namespace pgwarp::gpu
