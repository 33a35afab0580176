#include "kernels/cuda/lists/limit_lists.h"

#include "kernels/cuda/base/launch.cuh"
#include "kernels/cuda/lists/filtered_run.cuh"
#include "kernels/cuda/lists/query_table.cuh"
#include "kernels/cuda/lists/store_of.cuh"
#include "kernels/cuda/lists/tile_distances.cuh"
#include "kernels/list_plan.h"

#include <cooperative_groups.h>

namespace pgwarp::gpu {

namespace {

struct LimitArguments {
    QueryScan scan;
    LimitedQueries queries;
    FilterView filter;
    uint32_t resident_slices;  // of the table in shared memory: all, or none
    uint32_t parts = 1;        // blocks of a query: a cluster
};

// What the queries of a launch have in common.
enum class LimitKind { plain, mixed, filtered };

// A warp's run of tiles [tile, end), 32 at a time: lane i keeps where tile i is. As FilteredRun,
// without conditions.
template <class Shape, int width>
class PlainRun {
  public:
    __device__ PlainRun(const QueryScan& scan, const FilterView&, const ListTiles& tiles,
                        uint32_t query, uint32_t rank, uint32_t tile, uint32_t end,
                        const float* table)
        : tiles_(tiles), tile_(tile), end_(end), rank_(rank), distances_(scan, query, table) {}

    // All methods are called by all lanes.
    __device__ bool done() const { return at_ >= count_ && tile_ >= end_; }

    // Offers the entries of the next `at_once` tiles. The selection has room for `room`.
    static constexpr int at_once = 64 / width;
    static constexpr int room = 32 * at_once;
    __device__ __forceinline__ void step(BlockSelect<Shape>& select) {
        if (at_ >= count_) next_tiles();
        TileCodes codes[at_once];
        float distance[at_once];
#pragma unroll
        for (uint32_t i = 0; i < at_once; ++i)
            codes[i] = codes_of_lane(here_, min(at_ + i, count_ - 1));
        distances_.of(codes, distance);
#pragma unroll
        for (uint32_t i = 0; i < at_once; ++i) {
            const auto t = static_cast<int>(min(at_ + i, count_ - 1));
            const bool is_entry = lane_id() < __shfl_sync(whole_warp, here_.entries, t);
            const uint32_t first = __shfl_sync(whole_warp, first_, t);
            const float found = finite_or_infinite(distance[i]);
            select.collect(at_ + i < count_ && is_entry && found <= select.bound(),
                           make_key(found, first + lane_id()));
        }
        at_ += at_once;
    }

  private:
    __device__ void next_tiles() {
        count_ = min(end_ - tile_, 32u);
        at_ = 0;
        const uint32_t tile = tile_ + min(lane_id(), count_ - 1);
        const uint32_t rank = tiles_.rank_of(tile, rank_);
        rank_ = __shfl_sync(whole_warp, rank, 31);
        here_ = tiles_.ref(tile, rank);
        first_ = here_.list->first + here_.position;
        tile_ += count_;
    }

    const ListTiles tiles_;
    uint32_t tile_, end_;
    uint32_t rank_;  // not larger than that of tile_
    uint32_t count_ = 0, at_ = 0;
    const CodeDistances<width> distances_;
    TileRef here_{};
    uint32_t first_ = 0;  // number of the tile's first entry in the store
};

// The blocks of a query. Each scans a part of a wave; the first one has the nearest entries of all.
class QueryBlocks {
  public:
    __device__ explicit QueryBlocks(uint32_t parts) : parts_(parts), part_(blockIdx.x % parts) {}

    __device__ uint32_t query() const { return blockIdx.x / parts_; }
    __device__ uint32_t parts() const { return parts_; }
    __device__ uint32_t part() const { return part_; }

    // The same variable of shared memory in the block of this number.
    template <typename T>
    __device__ const T* of(uint32_t part, const T* mine) const {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
        return cooperative_groups::this_cluster().map_shared_rank(mine, part);
#else
        return mine;
#endif
    }
    __device__ void wait() const {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
        if (parts_ > 1) cooperative_groups::this_cluster().sync();
#endif
    }

  private:
    uint32_t parts_, part_;
};

// What the blocks of a query have seen of a wave.
struct WaveSeen {
    float kth;  // distance of the k-th nearest entry so far; infinity: there are fewer
    uint32_t passed;
};

// Called by all blocks of a query after a cut. The first one takes the kept keys of the others.
template <class Shape>
__device__ WaveSeen join_blocks(const QueryBlocks& blocks, BlockSelect<Shape>& select,
                                const typename BlockSelect<Shape>::Storage& storage, uint32_t k,
                                uint32_t passed) {
    // The first block reads `mine` of the others before the second wait, all read its `seen` after
    // it.
    __shared__ struct { uint32_t kept, passed; } mine;
    __shared__ WaveSeen seen;
    if (threadIdx.x == 0) mine = {select.kept_count(), passed};
    blocks.wait();
    if (blocks.part() == 0) {
        uint32_t all = passed;
        for (uint32_t part = 1; part < blocks.parts(); ++part) {
            const uint32_t count = blocks.of(part, &mine)->kept;
            const uint64_t* keys = blocks.of(part, storage.keys);
            all += blocks.of(part, &mine)->passed;
            for (uint32_t base = 0; base < count; base += Shape::threads) {
                if (__syncthreads_or(select.room() < 32)) select.cut();
                const uint32_t i = base + threadIdx.x;
                const uint64_t key = i < count ? keys[i] : no_key;
                select.collect(key != no_key, key);
            }
        }
        if (blocks.parts() > 1) select.cut();
        if (threadIdx.x == 0)
            seen = {select.kept_count() >= k ? select.bound() : bits_float(infinity_bits), all};
    }
    __syncthreads();
    blocks.wait();
    const WaveSeen result = *blocks.of(0, &seen);
    if (blocks.part() > 0) select.begin_again(result.kth);
    return result;
}

// Called by the whole block. Offers a part of the entries of the lists [begin, end) to the
// selection, each warp those of a run of tiles. Returns how many pass the query's conditions.
template <class Shape, int width, LimitKind kind>
__device__ uint32_t scan_wave(const LimitArguments& a, const QueryBlocks& blocks,
                              const ListTiles& all, uint32_t begin, uint32_t end,
                              BlockSelect<Shape>& select, const float* table) {
    using Run = std::conditional_t<kind == LimitKind::filtered, FilteredRun<Shape, width>,
                                   PlainRun<Shape, width>>;
    __shared__ uint32_t passed;
    if (threadIdx.x == 0) passed = 0;
    const uint32_t first = all.start(begin), tiles = all.start(end) - first;
    const uint32_t query = blocks.query(), runs = blocks.parts() * Shape::warps;
    const uint32_t warp = blocks.part() * Shape::warps + threadIdx.x / 32;
    Run run(a.scan, a.filter, all, query, begin, first + part_begin(tiles, warp, runs),
            first + part_begin(tiles, warp + 1, runs), table);
    const bool prunes = a.scan.queries.wanted[query].plan.k <= BlockSelect<Shape>::most_pruned;
    while (true) {
        while (!run.done()) {
            if (select.room() < run.room && prunes) select.prune();
            if (select.room() < run.room) break;
            run.step(select);
        }
        if (!__syncthreads_or(!run.done())) break;
        select.cut();
    }
    if constexpr (kind == LimitKind::filtered) {
        const uint32_t mine = run.passed();
        if (lane_id() == 0 && mine > 0) atomicAdd(&passed, mine);
    }
    select.cut();  // ends with a barrier
    return passed;
}

// A cluster of blocks per query.
template <class Shape, int width, LimitKind kind>
__global__ void __launch_bounds__(Shape::threads) limit_query(LimitArguments a) {
    using Storage = typename BlockSelect<Shape>::Storage;
    auto* storage = shared_memory<Storage>();
    auto* table = reinterpret_cast<float*>(storage + 1);
    __shared__ uint32_t stop;
    wait_for_kernels_before();
    const QueryBlocks blocks(a.parts);
    const uint32_t query = blocks.query();
    const QueryView& queries = a.scan.queries;
    const ListQuery wanted = queries.wanted[query];
    const ListPlan& plan = wanted.plan;
    if (!(plan.threshold > 0)) return;  // all blocks of the query
    constexpr bool mixed = kind == LimitKind::mixed;
    const StoreOf<mixed> store = store_of<mixed>(a.scan, query);
    const uint32_t probes = min(wanted.probes, store.model.shape.lists);
    const uint32_t* starts = queries.entry_starts + size_t{query} * (queries.probes + 1);
    const float* terms = queries.terms + size_t{query} * queries.probes;
    const float nearest = fminf(plan.nearest, terms[0]);
    if (a.resident_slices > 0)
        load_query_table<Shape::threads>(a.scan, a.resident_slices, query, 0, table);
    const ListTiles all(store, a.scan, query, probes);
    BlockSelect<Shape> select(*storage, plan.k);
    // A search that goes on with a later list has counted the entries before.
    ListPlan rest = plan;
    uint32_t taken = wanted.first_probe, passed = 0;
    if (taken > 0) {
        passed = static_cast<uint32_t>(plan.entries);
        rest.entries = 0;
    }
    ListWave wave = ListWave::after(rest, static_cast<float>(starts[taken]),
                                    static_cast<float>(passed), bits_float(infinity_bits));
    while (true) {
        const uint32_t end = min(wave_end(taken), probes);
        if (threadIdx.x == 0) stop = end;
        __syncthreads();
        for (uint32_t rank = taken + threadIdx.x; rank < end; rank += Shape::threads)
            if (!wave.takes(plan, terms[rank], nearest, static_cast<float>(starts[rank])))
                atomicMin(&stop, rank);
        __syncthreads();
        const uint32_t stopped = stop;
        // Only a whole wave is followed by another, which needs its radius.
        if (stopped < end || end == probes) {
            taken = stopped;
            break;
        }
        const uint32_t here = scan_wave<Shape, width, kind>(
            a, blocks, all, taken, end, select, a.resident_slices > 0 ? table : nullptr);
        const WaveSeen seen = join_blocks<Shape>(blocks, select, *storage, plan.k, here);
        taken = end;
        passed = kind == LimitKind::filtered ? passed + seen.passed : starts[end];
        wave = ListWave::after(rest, static_cast<float>(starts[end]), static_cast<float>(passed),
                               seen.kth);
    }
    blocks.wait();  // no block ends while another reads its memory
    if (threadIdx.x != 0 || blocks.part() != 0) return;
    a.queries.wanted[query].probes = taken;
    a.queries.taken[query] = taken;
}

template <class Shape, int width, LimitKind kind>
void launch_limit(const LimitArguments& arguments, const Context& context, Turn turn) {
    constexpr size_t fixed = sizeof(typename BlockSelect<Shape>::Storage);
    static_assert(fixed % 16 == 0);
    const QueryScan& scan = arguments.scan;
    const size_t table_bytes = float_table_size(scan.store.layout) * sizeof(float);
    const bool fits = table_bytes <= context.block_shared_bytes - fixed;
    LimitArguments with_table = arguments;
    with_table.resident_slices = fits ? scan.store.layout.slices : 0;
    // As many as fill the device, two on each multiprocessor; every device has clusters of eight.
    constexpr uint32_t most_parts = 8;
    while (has_hopper_code() && with_table.parts < most_parts &&
           with_table.parts * scan.queries.count <= context.processors)
        with_table.parts *= 2;
    launch("limit_lists", limit_query<Shape, width, kind>,
           {scan.queries.count * with_table.parts, Shape::threads, fixed + (fits ? table_bytes : 0),
            turn, with_table.parts},
           with_table);
}

template <class Shape, LimitKind kind>
void launch_width(const LimitArguments& arguments, const Context& context, Turn turn) {
    if (arguments.scan.store.layout.width == 32)
        launch_limit<Shape, 32, kind>(arguments, context, turn);
    else
        launch_limit<Shape, 16, kind>(arguments, context, turn);
}

template <LimitKind kind>
void launch_shape(const LimitArguments& arguments, const Context& context, Turn turn) {
    if (arguments.scan.queries.k <= WideSelect::kept)
        launch_width<WideSelect, kind>(arguments, context, turn);
    else
        launch_width<LargeSelect, kind>(arguments, context, turn);
}

}  // namespace

void limit_lists(const QueryScan& scan, const LimitedQueries& queries, const FilterView* filter,
                 const Context& context, Turn turn) {
    static_assert(fast_list_k <= WideSelect::kept);
    if (filter)
        launch_shape<LimitKind::filtered>({scan, queries, *filter, 0}, context, turn);
    else if (scan.queries.stores)
        launch_width<WideSelect, LimitKind::mixed>({scan, queries, {}, 0}, context, turn);
    else
        launch_shape<LimitKind::plain>({scan, queries, {}, 0}, context, turn);
}

}  // namespace pgwarp::gpu
