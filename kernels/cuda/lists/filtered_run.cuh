// The entries of a query's lists that pass its conditions, by the warps of a block.
#pragma once

#include "kernels/cuda/select/block_select.cuh"
#include "kernels/cuda/lists/conditions.cuh"
#include "kernels/cuda/lists/tile_distances.cuh"

namespace pgwarp::gpu {

// A warp's run of tiles, 32 at a time. Lane i keeps where tile i is. Each lane checks the
// conditions of its entry in every tile, and then computes the distances of those that pass, one at
// a time, whichever tiles they are in: few lanes are idle even if few entries pass.
template <class Shape, int width>
class FilteredRun {
  public:
    // Tiles [tile, end), of lists from `rank` on. `table`: in shared memory, or null.
    __device__ FilteredRun(const QueryScan& scan, const FilterView& filter, const ListTiles& tiles,
                           uint32_t query, uint32_t rank, uint32_t tile, uint32_t end,
                           const float* table)
        : attributes_(filter.attributes),
          tiles_(tiles),
          wanted_(scan.queries.wanted[query]),
          conditions_(filter.conditions + size_t{query} * filter.condition_stride),
          values_(filter.values + size_t{query} * filter.value_stride),
          tile_(tile),
          end_(end),
          rank_(rank),
          distances_(scan, query, table) {}

    // All methods are called by all lanes.
    __device__ bool done() const { return !waits_ && tile_ >= end_; }
    __device__ uint32_t passed() const { return __reduce_add_sync(whole_warp, passed_); }
    __device__ uint32_t beyond() const { return beyond_; }

    // Offers up to `most_offered` entries of each lane. The selection has room for `room`.
    static constexpr int most_offered = 2;
    static constexpr int room = 32 * most_offered;
    __device__ __forceinline__ void step(BlockSelect<Shape>& select) {
        while (!waits_) {
            if (tile_ >= end_) return;
            next_tiles();
        }
        if (__any_sync(whole_warp, (passing_ & (passing_ - 1)) != 0))
            offer<most_offered>(select);
        else
            offer<1>(select);
        waits_ = __any_sync(whole_warp, passing_ != 0);
    }

  private:
    // Offers the next `count` entries of each lane that pass.
    template <int count>
    __device__ __forceinline__ void offer(BlockSelect<Shape>& select) {
        bool mine[count];
        uint32_t at[count];
        TileCodes tile[count];
#pragma unroll
        for (int i = 0; i < count; ++i) {
            mine[i] = passing_ != 0;
            at[i] = mine[i] ? __ffs(static_cast<int>(passing_)) - 1 : 0;
            passing_ &= passing_ - 1;
            tile[i] = codes_of_lane(here_, at[i]);
        }
        float distance[count];
        distances_.of(tile, distance);
#pragma unroll
        for (int i = 0; i < count; ++i)
            offer_one(select, mine[i], at[i], finite_or_infinite(distance[i]));
    }
    __device__ __forceinline__ void offer_one(BlockSelect<Shape>& select, bool mine, uint32_t at,
                                              float distance) {
        const uint32_t first = __shfl_sync(whole_warp, first_, static_cast<int>(at));
        bool passes = mine && distance > wanted_.floor_distance;
        const bool ties = mine && distance == wanted_.floor_distance;
        if (__any_sync(whole_warp, ties)) {
            const DeviceList* list = pointer_of_lane(here_.list, at);
            const uint32_t position =
                __shfl_sync(whole_warp, here_.position, static_cast<int>(at)) + lane_id();
            if (ties) passes = tid_at(*list, position) > wanted_.floor_id;
        }
        beyond_ += __popc(__ballot_sync(whole_warp, passes));
        select.collect(passes && distance <= select.bound(), make_key(distance, first + lane_id()));
    }

    // Finds the entries of the next tiles that pass.
    __device__ void next_tiles() {
        const uint32_t count = min(end_ - tile_, 32u);
        const uint32_t tile = tile_ + min(lane_id(), count - 1);
        const uint32_t rank = tiles_.rank_of(tile, rank_);
        rank_ = __shfl_sync(whole_warp, rank, 31);
        here_ = tiles_.ref(tile, rank);
        first_ = here_.list->first + here_.position;
        const uint32_t before = __shfl_up_sync(whole_warp, rank, 1);
        starts_ = __ballot_sync(whole_warp, lane_id() == 0 || rank != before);
        passing_ = entries_of(count);
        for (uint32_t c = 0; c < wanted_.conditions; ++c) {
            const uint32_t left = __reduce_or_sync(whole_warp, passing_);
            if (left == 0) break;
            check(conditions_[c], {count, left});
        }
        passed_ += __popc(passing_);
        waits_ = __any_sync(whole_warp, passing_ != 0);
        tile_ += count;
    }
    // This lane's entries of the tiles that are no padding: only a list's last tile has any.
    __device__ uint32_t entries_of(uint32_t count) const {
        const bool whole = lane_id() < count && here_.entries == tile_entries;
        uint32_t entries = __ballot_sync(whole_warp, whole);
        for (uint32_t others = low_bits(count) & ~entries; others != 0; others &= others - 1) {
            const int t = __ffs(static_cast<int>(others)) - 1;
            if (lane_id() < __shfl_sync(whole_warp, here_.entries, t)) entries |= 1u << t;
        }
        return entries;
    }
    static __device__ uint32_t low_bits(uint32_t count) {
        return count >= 32 ? ~0u : (1u << count) - 1;
    }

    // The tiles that a condition is checked in.
    struct CheckedTiles {
        uint32_t count;  // of this step
        uint32_t left;   // a bit for each that has a passing entry
    };

    // Drops the entries that do not pass a condition.
    __device__ void check(const PackedCondition& condition, CheckedTiles tiles) {
        const AttributeColumn mine(attributes_, condition.attribute, *here_.list, here_.position);
        switch (mine.bytes) {
            case 1:
                return check_numbers<uint8_t>(condition, mine, tiles);
            case 2:
                return check_numbers<uint16_t>(condition, mine, tiles);
            case 4:
                return check_numbers<uint32_t>(condition, mine, tiles);
            default:
                return check_numbers<unsigned long long>(condition, mine, tiles);
        }
    }
    template <typename Number>
    __device__ void check_numbers(const PackedCondition& condition, const AttributeColumn& mine,
                                  CheckedTiles tiles) {
        if (condition.kind != ConditionKind::range)
            return check_some<Number, 4>(condition, mine, tiles, [&](Number x) {
                return number_passes(condition, values_ + condition.first_value, x);
            });
        // One comparison, of the number's own width.
        constexpr auto largest = static_cast<Number>(~Number{0});
        const auto low = static_cast<Number>(condition.low);
        const auto high = condition.high < largest ? static_cast<Number>(condition.high) : largest;
        const bool any = condition.low <= high;
        const auto span = static_cast<Number>(high - low);
        check_some<Number, sizeof(Number) == 8 ? 8 : 16>(condition, mine, tiles, [=](Number x) {
            return any && static_cast<Number>(x - low) <= span;
        });
    }
    // `at_once`: loads in flight.
    template <typename Number, uint32_t at_once, class Passes>
    __device__ __forceinline__ void check_some(const PackedCondition& condition,
                                               const AttributeColumn& mine, CheckedTiles tiles,
                                               Passes passes) {
        const bool null_passes = condition.kind == ConditionKind::is_null;
        // The number of a null attribute is 0.
        const bool reads_nulls = null_passes || passes(0);
        for (uint32_t first = 0; first < tiles.count; first += at_once) {
            const uint32_t left = tiles.left >> first & low_bits(at_once);
            if (left == 0) continue;
            Number number[at_once];
            load_numbers<Number, at_once>(mine, first, left, number);
            uint32_t passing = 0;
#pragma unroll
            for (uint32_t i = 0; i < at_once; ++i)
                passing |= static_cast<uint32_t>(passes(number[i])) << i;
            if (reads_nulls) {
#pragma unroll
                for (uint32_t i = 0; i < at_once; ++i) {
                    const uint32_t t = min(first + i, tiles.count - 1);
                    const uint8_t* nulls = pointer_of_lane(mine.nulls, t);
                    const bool null = number[i] == 0 && (passing_ >> t & 1) &&
                                      __ldg(nulls + lane_id()) >> condition.attribute % 8 & 1;
                    if (null) passing &= ~(1u << i);
                    if (null && null_passes) passing |= 1u << i;
                }
            }
            passing_ &= ~(low_bits(at_once) << first) | passing << first;
        }
    }
    // This lane's numbers in the tiles from `first` on; 0 in those without a bit in `left`.
    template <typename Number, uint32_t at_once>
    __device__ __forceinline__ void load_numbers(const AttributeColumn& mine, uint32_t first,
                                                 uint32_t left, Number (&number)[at_once]) const {
        // Tiles of one list are adjacent: their addresses need no exchange between lanes.
        const bool adjacent = (starts_ >> first >> 1 & low_bits(at_once - 1)) == 0;
        if (adjacent) {
            const auto* numbers =
                reinterpret_cast<const Number*>(pointer_of_lane(mine.numbers, first)) + lane_id();
#pragma unroll
            for (uint32_t i = 0; i < at_once; ++i)
                number[i] = left >> i & 1 ? __ldg(numbers + i * tile_entries) : Number{0};
            return;
        }
#pragma unroll
        for (uint32_t i = 0; i < at_once; ++i) {
            const auto* numbers =
                reinterpret_cast<const Number*>(pointer_of_lane(mine.numbers, min(first + i, 31u)));
            number[i] = left >> i & 1 ? __ldg(numbers + lane_id()) : Number{0};
        }
    }

    const DeviceAttributes& attributes_;
    const ListTiles tiles_;
    const ListQuery wanted_;
    const PackedCondition* conditions_;
    const uint64_t* values_;
    uint32_t tile_, end_;
    uint32_t rank_;  // not larger than that of tile_
    const CodeDistances<width> distances_;
    TileRef here_{};
    uint32_t first_ = 0;    // number of the tile's first entry in the store
    uint32_t starts_ = 0;   // a bit for each tile of another list than the tile before
    uint32_t passing_ = 0;  // of this lane's entries, a bit for each tile
    bool waits_ = false;    // any lane's passing_ is not 0
    uint32_t passed_ = 0;   // of the lane
    uint32_t beyond_ = 0;   // of the warp
};

}  // namespace pgwarp::gpu
