#include "kernels/cuda/lists/search_plan.h"

#include "kernels/cuda/lists/filter.h"
#include "kernels/cuda/lists/search_layout.h"
#include "kernels/cuda/products/split_width.h"

#include <algorithm>
#include <stdexcept>

namespace pgwarp::gpu {

namespace {

// Tables of this total size stay in the L2 cache while lists stream through it.
constexpr size_t cached_table_bytes = size_t{24} << 20;

// The scan by list takes longer to prepare. It pays off if several queries of the batch visit each
// list and there is enough to scan. Measured on an H200; see bench/notes/kernels.md.
constexpr uint64_t min_visits_per_list = 4;
constexpr uint32_t least_by_list = 128;
constexpr uint64_t min_look_ups = 260000000;

constexpr uint32_t min_item_tiles = 256;
constexpr uint32_t max_list_parts = 8;

// Cuts one scratch space into slices, aligned to 256 bytes.
class Cutter {
  public:
    Slice cut(size_t bytes) {
        const Slice slice{at_, bytes};
        at_ += (bytes + 255) / 256 * 256;
        return slice;
    }
    size_t bytes() const { return at_; }

  private:
    size_t at_ = 0;
};

SearchMethod choose_method(const SearchShape& s) {
    if (s.filtered || s.limited || s.mixed) return SearchMethod::by_query;
    const uint64_t visits = uint64_t{s.queries} * s.probes;
    const uint64_t look_ups = s.entries / std::max(s.lists, 1u) * visits * s.layout.m;
    const bool much = s.queries >= always_by_list || look_ups >= min_look_ups;
    const bool by_list =
        s.queries >= least_by_list && visits >= min_visits_per_list * s.lists && much;
    return by_list ? SearchMethod::by_list : SearchMethod::by_query;
}

void plan_by_query(const SearchShape& s, const DeviceFigures& device, SearchPlan& plan) {
    const uint32_t candidates = list_candidates(s.k);
    // Enough blocks to fill the device, as long as each block has some tiles per warp, and scans
    // several times more entries than it returns candidates.
    const uint64_t tiles = s.entries / std::max(s.lists, 1u) * s.probes / tile_entries;
    // Filtered queries wait for memory most of the time: more blocks hide that.
    const uint64_t wanted = (s.filtered ? 5 : 4) * device.processors / plan.part_queries;
    const uint64_t useful = std::min(tiles / 8, tiles * tile_entries / (4 * candidates));
    const uint64_t affordable =
        device.scratch / 4 / (size_t{plan.part_queries} * candidates * sizeof(uint64_t));
    plan.splits =
        static_cast<uint32_t>(std::clamp<uint64_t>(std::min({wanted, useful, affordable}), 1, 256));
    plan.candidate_room = plan.splits * candidates;
    const size_t n = plan.part_queries;
    Cutter cutter;
    plan.coarse = cutter.cut(n * padded_rows(s.lists) * sizeof(float));
    plan.probed = cutter.cut(n * s.probes * sizeof(uint32_t));
    plan.terms = cutter.cut(n * s.probes * sizeof(float));
    plan.tile_starts = cutter.cut(n * (s.probes + 1) * sizeof(uint32_t));
    if (s.limited) plan.entry_starts = cutter.cut(n * (s.probes + 1) * sizeof(uint32_t));
    plan.tables = cutter.cut(n * float_table_size(s.layout) * sizeof(float));
    plan.keys = cutter.cut(n * plan.candidate_room * sizeof(uint64_t));
    plan.counts = cutter.cut(n * sizeof(uint32_t));
    if (s.filtered) {
        // Right behind `counts`: one call clears both.
        plan.filtered_counts = cutter.cut(n * sizeof(FilteredCounts));
    }
    plan.scratch_bytes = cutter.bytes();
}

void plan_by_list(const SearchShape& s, SearchPlan& plan) {
    const uint32_t candidates = list_candidates(s.k);
    const size_t table_bytes = half_table_units(s.layout) * 16;
    const size_t n = plan.part_queries;
    plan.splits = 16;  // for queries that are scanned again after an overflow
    plan.candidate_room = 2048 + 32 * candidates;
    plan.first_room = std::clamp(4 * candidates, 1024u, 8192u);
    plan.table_queries = static_cast<uint32_t>(
        std::clamp<size_t>(cached_table_bytes / table_bytes, 64, std::max<size_t>(n, 64)));
    const size_t parts = (n + plan.table_queries - 1) / plan.table_queries;
    plan.bins = static_cast<uint32_t>(parts * s.lists);
    // Long lists are split, into at most max_list_parts parts: the number of items stays bounded
    // however long the longest list is.
    const uint32_t longest = (s.longest_list + tile_entries - 1) / tile_entries;
    plan.tiles_per_item = std::max(min_item_tiles, (longest + max_list_parts - 1) / max_list_parts);
    const uint32_t list_parts =
        std::max(1u, (longest + plan.tiles_per_item - 1) / plan.tiles_per_item);
    const uint64_t visits = uint64_t{n} * s.probes;
    // Upper bound: all groups of a bin but the last are full; a bin without visits has no group.
    plan.items = (visits / group_queries + std::min<uint64_t>(plan.bins, visits)) * list_parts;

    Cutter cutter;
    plan.probed = cutter.cut(n * s.probes * sizeof(uint32_t));
    plan.terms = cutter.cut(n * s.probes * sizeof(float));
    plan.tile_starts = cutter.cut(n * (s.probes + 1) * sizeof(uint32_t));
    plan.tables = cutter.cut(n * table_bytes);
    plan.keys = cutter.cut(n * plan.candidate_room * sizeof(uint64_t));
    plan.counts = cutter.cut(n * sizeof(uint32_t));
    plan.first_counts = cutter.cut(n * sizeof(uint32_t));
    plan.distances = cutter.cut(n * plan.first_room * sizeof(float));
    plan.bounds = cutter.cut(n * sizeof(float));
    plan.overflowed = cutter.cut((n + 1) * sizeof(uint32_t));
    plan.sizes = cutter.cut((size_t{plan.bins} + 1) * sizeof(uint32_t));
    plan.item_starts = cutter.cut((size_t{plan.bins} + 1) * sizeof(uint32_t));
    plan.ranks = cutter.cut(visits * sizeof(uint32_t));
    plan.first_sizes = cutter.cut((size_t{s.lists} + 1) * sizeof(uint32_t));
    plan.first_item_starts = cutter.cut((size_t{s.lists} + 1) * sizeof(uint32_t));
    plan.cursors = cutter.cut(size_t{s.lists} * sizeof(uint32_t));
    plan.answers = cutter.cut(n * s.k * sizeof(Neighbor));
    plan.answer_counts = cutter.cut(n * sizeof(uint32_t));
    plan.visits = cutter.cut(visits * sizeof(Visit));
    plan.item_table = cutter.cut(plan.items * sizeof(WorkItem));
    plan.item_count = cutter.cut(2 * sizeof(uint32_t));
    plan.scratch_bytes = cutter.bytes();
}

// Memory in addition to the scratch space: the tile of coarse products (assign.h).
size_t coarse_bytes(const SearchShape& s, size_t queries) {
    return queries * (padded_rows(s.lists) * sizeof(float) +
                      split_width(s.dims) * sizeof(uint16_t) + sizeof(float));
}

}  // namespace

SearchPlan plan_search(const SearchShape& shape, const DeviceFigures& device) {
    return plan_search(shape, device, choose_method(shape));
}

SearchPlan plan_search(const SearchShape& shape, const DeviceFigures& device, SearchMethod method) {
    SearchPlan plan{};
    plan.method = method;
    plan.part_queries = std::max(shape.queries, 1u);
    while (true) {
        size_t bytes;
        if (method == SearchMethod::by_list) {
            plan_by_list(shape, plan);
            bytes = plan.scratch_bytes + coarse_bytes(shape, plan.part_queries);
        } else {
            plan_by_query(shape, device, plan);
            bytes = plan.scratch_bytes;
        }
        if (bytes <= device.scratch) return plan;
        if (plan.part_queries == 1)
            throw std::length_error("the scratch space does not hold one query's tables");
        plan.part_queries = (plan.part_queries + 1) / 2;
    }
}

}  // namespace pgwarp::gpu
