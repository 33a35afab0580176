#include "kernels/cuda/lists/scan_narrowed.h"

#include "kernels/cuda/select/block_select.cuh"
#include "kernels/cuda/base/launch.cuh"
#include "kernels/cuda/lists/conditions.cuh"
#include "kernels/cuda/lists/query_table.cuh"
#include "kernels/cuda/lists/tile_distances.cuh"

#include <algorithm>

namespace pgwarp::gpu {

namespace {

struct NarrowArguments {
    QueryScan scan;
    NarrowingView narrowing;
    uint32_t resident_slices;  // of the table in shared memory: all, or none
};

// A warp's run of tiles, 32 at a time. Lane i keeps where tile i is. Each lane checks the
// conditions of its entry in every tile, and then computes the distances of those that pass, one at
// a time, whichever tiles they are in: few lanes are idle even if few entries pass.
template <class Shape, int width>
class NarrowRun {
  public:
    __device__ NarrowRun(const NarrowArguments& a, const ListTiles& tiles, uint32_t query,
                         uint32_t tile, uint32_t end, const float* table)
        : a_(a),
          tiles_(tiles),
          wanted_(a.scan.queries.wanted[query]),
          conditions_(a.narrowing.conditions + size_t{query} * a.narrowing.condition_stride),
          values_(a.narrowing.values + size_t{query} * a.narrowing.value_stride),
          tile_(tile),
          end_(end),
          rank_(wanted_.first_probe),
          distances_(a.scan, query, a.resident_slices > 0 ? table : nullptr) {}

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
        const AttributeColumn mine(a_.narrowing.attributes, condition.attribute, *here_.list,
                                   here_.position);
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

    const NarrowArguments& a_;
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

// Called by the whole block after a cut: adds what it kept to the query's candidates.
template <class Shape>
__device__ void add_kept(const BlockSelect<Shape>& select, const CandidateView& out,
                         uint32_t query) {
    __shared__ uint32_t first;
    const uint32_t kept = select.kept_count();
    if (threadIdx.x == 0) first = kept > 0 ? atomicAdd(&out.counts[query], kept) : 0;
    __syncthreads();
    uint64_t* keys = out.keys + size_t{query} * out.room + first;
    for (uint32_t i = threadIdx.x; i < kept; i += Shape::threads) keys[i] = select.kept()[i];
}

// Scans a block's share of a query's tiles; each warp has its own run.
template <class Shape, int width>
__device__ void narrow_part(const NarrowArguments& a, uint32_t query, uint32_t split,
                            typename BlockSelect<Shape>::Storage& storage, float* table) {
    const StoreView& store = a.scan.store;
    const ListQuery wanted = a.scan.queries.wanted[query];
    const uint32_t probes = min(wanted.probes, store.model.shape.lists);
    const ListTiles all(a.scan.store, a.scan, query, probes);
    const uint32_t begin = all.start(wanted.first_probe);
    const uint32_t tiles = all.start(probes) - begin;
    const uint32_t first = begin + part_begin(tiles, split, a.scan.splits);
    const uint32_t count = begin + part_begin(tiles, split + 1, a.scan.splits) - first;
    const uint32_t warp = threadIdx.x / 32;

    if (count > 0 && a.resident_slices > 0)
        load_query_table<Shape::threads>(a.scan, a.resident_slices, query, 0, table);
    __syncthreads();
    BlockSelect<Shape> select(storage, list_candidates(wanted.k));
    NarrowRun<Shape, width> run(a, all, query, first + part_begin(count, warp, Shape::warps),
                                first + part_begin(count, warp + 1, Shape::warps), table);
    const bool prunes = list_candidates(wanted.k) <= BlockSelect<Shape>::most_pruned;
    while (true) {
        while (!run.done()) {
            if (select.room() < run.room && prunes) select.prune();
            if (select.room() < run.room) break;
            run.step(select);
        }
        if (!__syncthreads_or(!run.done())) break;
        select.cut();
    }
    select.cut();
    add_kept(select, a.scan.candidates, query);
    const uint32_t passed = run.passed();
    if (lane_id() == 0 && passed > 0) {
        NarrowedCounts& counts = a.narrowing.counts[query];
        atomicAdd(&counts.searched.passed, passed);
        atomicAdd(&counts.beyond, run.beyond());
    }
}

template <class Shape, int width>
__global__ void __launch_bounds__(Shape::threads, 768 / Shape::threads)
    scan_narrowed_queries(NarrowArguments a) {
    using Storage = typename BlockSelect<Shape>::Storage;
    auto* storage = shared_memory<Storage>();
    auto* table = reinterpret_cast<float*>(storage + 1);
    const uint32_t tasks = a.scan.queries.count * a.scan.splits;
    for (uint32_t task = blockIdx.x; task < tasks; task += gridDim.x) {
        narrow_part<Shape, width>(a, task / a.scan.splits, task % a.scan.splits, *storage, table);
        __syncthreads();
    }
}

template <class Shape, int width>
void launch_narrowed(const NarrowArguments& arguments, const Context& context,
                     cudaStream_t stream) {
    constexpr size_t fixed = sizeof(typename BlockSelect<Shape>::Storage);
    static_assert(fixed % 16 == 0);
    const QueryScan& scan = arguments.scan;
    const size_t table_bytes = size_t{scan.store.layout.slices} * codewords * width * sizeof(float);
    // A table that does not fit is read from memory: few entries pass.
    const bool fits = table_bytes <= context.block_shared_bytes - fixed;
    NarrowArguments with_table = arguments;
    with_table.resident_slices = fits ? scan.store.layout.slices : 0;
    launch("scan_narrowed", scan_narrowed_queries<Shape, width>,
           {scan.queries.count * scan.splits, Shape::threads, fixed + (fits ? table_bytes : 0),
            stream},
           with_table);
}

template <class Shape>
void launch_width(const NarrowArguments& arguments, const Context& context, cudaStream_t stream) {
    if (arguments.scan.store.layout.width == 32)
        launch_narrowed<Shape, 32>(arguments, context, stream);
    else
        launch_narrowed<Shape, 16>(arguments, context, stream);
}

// --- the neighborhood

constexpr unsigned near_threads = 256;
// About how many entries are looked at for a query, by whole tiles.
constexpr uint32_t near_entries = 32768;

struct NearArguments {
    QueryScan scan;
    NarrowingView narrowing;
    uint32_t parts;            // blocks for each query
    uint32_t resident_slices;  // of the table in shared memory: all, or none
};

// Counts a part of the query's near entries, by a sample of its tiles.
template <int width>
__device__ void count_part(const NearArguments& a, uint32_t query, uint32_t part, float bound,
                           float* table) {
    const ListQuery wanted = a.scan.queries.wanted[query];
    const uint32_t probes = min(wanted.probes, a.scan.store.model.shape.lists);
    const ListTiles all(a.scan.store, a.scan, query, probes);
    const uint32_t begin = all.start(wanted.first_probe);
    const uint32_t tiles = all.start(probes) - begin;
    const uint32_t step = tiles / (near_entries / tile_entries) + 1;
    if (a.resident_slices > 0)
        load_query_table<near_threads>(a.scan, a.resident_slices, query, 0, table);
    __syncthreads();
    const CodeDistances<width> distances(a.scan, query, a.resident_slices > 0 ? table : nullptr);
    uint32_t near[near_groups] = {};  // of the warp
    const uint32_t warps = a.parts * (near_threads / 32);
    const uint32_t warp = part * (near_threads / 32) + threadIdx.x / 32;
    const uint32_t sampled = (tiles + step - 1) / step;
    const uint32_t end = part_begin(sampled, warp + 1, warps);
    constexpr int at_once = 64 / width;
    uint32_t low = wanted.first_probe;
    for (uint32_t from = part_begin(sampled, warp, warps); from < end; from += 32) {
        // Lane i keeps where tile i is.
        const uint32_t count = min(end - from, 32u);
        const uint32_t tile = begin + (from + min(lane_id(), count - 1)) * step;
        const uint32_t rank = all.rank_of(tile, low);
        low = __shfl_sync(whole_warp, rank, 31);
        const TileRef mine = all.ref(tile, rank);
        const uint32_t group = near_group(rank, probes);
        for (uint32_t first = 0; first < count; first += at_once) {
            TileCodes codes[at_once];
            float distance[at_once];
#pragma unroll
            for (int i = 0; i < at_once; ++i)
                codes[i] = codes_of_lane(mine, min(first + i, count - 1));
            distances.of(codes, distance);
#pragma unroll
            for (uint32_t i = 0; i < at_once; ++i) {
                const auto t = static_cast<int>(min(first + i, count - 1));
                const uint32_t entries = __shfl_sync(whole_warp, mine.entries, t);
                const bool is_near =
                    first + i < count && lane_id() < entries && distance[i] <= bound;
                const uint32_t found = step * __popc(__ballot_sync(whole_warp, is_near));
                const uint32_t at = __shfl_sync(whole_warp, group, t);
#pragma unroll
                for (uint32_t g = 0; g < near_groups; ++g) near[g] += g == at ? found : 0;
            }
        }
    }
    if (lane_id() != 0) return;
    SearchedLists& searched = a.narrowing.counts[query].searched;
#pragma unroll
    for (uint32_t g = 0; g < near_groups; ++g)
        if (near[g] > 0) atomicAdd(&searched.near[g], near[g]);
}

// The query's last block writes what all blocks have counted.
template <int width>
__global__ void __launch_bounds__(near_threads) count_near_entries(NearArguments a) {
    const uint32_t query = blockIdx.x / a.parts;
    const float bound = a.narrowing.near_bounds[query];
    if (bound == bound)  // the same for the whole block
        count_part<width>(a, query, blockIdx.x % a.parts, bound, shared_memory<float>());
    __threadfence();
    __syncthreads();
    if (threadIdx.x != 0) return;
    NarrowedCounts& counts = a.narrowing.counts[query];
    if (atomicAdd(&counts.finished, 1u) != a.parts - 1) return;
    __threadfence();
    const volatile SearchedLists& from = counts.searched;
    SearchedLists& to = a.narrowing.searched[query];
    to.passed = from.passed;
    to.more = from.more;
#pragma unroll
    for (uint32_t g = 0; g < near_groups; ++g) to.near[g] = from.near[g];
}

template <int width>
void launch_near(const NearArguments& arguments, size_t table_bytes, cudaStream_t stream) {
    launch("count_near", count_near_entries<width>,
           {arguments.scan.queries.count * arguments.parts, near_threads, table_bytes, stream},
           arguments);
}

}  // namespace

void scan_narrowed(const QueryScan& scan, const NarrowingView& narrowing, const Context& context,
                   cudaStream_t stream) {
    const uint32_t candidates = list_candidates(scan.queries.k);
    auto* scan_all = &launch_width<LargeSelect>;
    if (candidates <= SmallSelect::kept)
        scan_all = &launch_width<SmallSelect>;
    else if (candidates <= MediumSelect::kept)
        scan_all = &launch_width<MediumSelect>;
    scan_all({scan, narrowing, 0}, context, stream);
}

void count_near(const QueryScan& scan, const NarrowingView& narrowing, const Context& context,
                cudaStream_t stream) {
    const CodeLayout& layout = scan.store.layout;
    const size_t table_bytes = size_t{layout.slices} * codewords * layout.width * sizeof(float);
    const bool fits = table_bytes <= context.block_shared_bytes;
    // Enough blocks to fill the device twice; one that had few tiles would mostly load its table.
    const uint32_t parts = std::clamp(2 * context.processors / scan.queries.count, 1u, 64u);
    const NearArguments arguments{scan, narrowing, parts, fits ? layout.slices : 0};
    auto* count_all = layout.width == 32 ? &launch_near<32> : &launch_near<16>;
    count_all(arguments, fits ? table_bytes : 0, stream);
}

}  // namespace pgwarp::gpu
