#include "kernels/cuda/lists/scan_queries.h"

#include "kernels/cuda/select/block_select.cuh"
#include "kernels/cuda/base/launch.cuh"
#include "kernels/cuda/lists/look_up.cuh"
#include "kernels/cuda/base/stream.h"
#include "kernels/cuda/lists/query_table.cuh"
#include "kernels/cuda/lists/query_tiles.cuh"
#include "kernels/cuda/lists/store_of.cuh"

#include <algorithm>

namespace pgwarp::gpu {

namespace {

struct ScanArguments {
    QueryScan scan;
    uint32_t resident_slices;  // slices of the table that shared memory holds
};

// Iterates over the tiles of a query's lists.
template <int width>
class TileWalk {
  public:
    // A tile's codes and offsets; their loads may be in flight.
    struct Tile {
        CodeWords<width> codes;
        float offset;    // NaN past the last entry
        float term;      // of the list; added late, so that load() does not wait for the offset
        uint32_t entry;  // number of this lane's entry in the store
    };

    // The store outlives it.
    __device__ TileWalk(const StoreView& store, const ScanArguments& a, uint32_t query,
                        uint32_t probes)
        : store_(store), tiles_(a.scan.queries, query, probes) {}

    __device__ uint32_t tiles() const { return tiles_.starts[tiles_.probes]; }

    // Moves to the list that contains the query's tile `tile`.
    __device__ void seek(uint32_t tile) { enter(tiles_.rank_of(tile)); }

    // Called by a warp. Prefetches up to 32 tiles from `tile` on into the L2 cache, one per lane,
    // for later calls of load().
    __device__ void ask_for(uint32_t tile, uint32_t end) const {
        tile += lane_id();
        if (tile >= end) return;
        const uint32_t rank = tiles_.rank_of(tile);
        const DeviceList& list = store_.lists[tiles_.probed[rank]];
        const uint32_t in_list = tile - tiles_.starts[rank], bytes = store_.layout.tile_bytes();
        const uint8_t* codes = list.tiles + size_t{in_list} * bytes;
        for (uint32_t i = 0; i < bytes; i += 128) prefetch(codes + i);
        prefetch(list.offsets + in_list * tile_entries);
    }

    // Loads slice 0 of a tile. Tiles of successive calls must not decrease.
    __device__ __forceinline__ Tile load(uint32_t tile) {
        while (tile >= end_) enter(rank_ + 1);
        const uint32_t in_list = tile - begin_;
        const uint32_t position = in_list * tile_entries + lane_id();
        Tile loaded;
        loaded.codes.load(words(in_list, 0));
        loaded.offset = __ldg(list_.offsets + position);
        loaded.term = term_;
        loaded.entry = list_.first + position;
        return loaded;
    }
    // Loads another slice of a tile of the current list.
    __device__ void load_slice(uint32_t tile, uint32_t slice, CodeWords<width>& codes) const {
        codes.load(words(tile - begin_, slice));
    }

  private:
    static __device__ void prefetch(const void* address) {
        asm volatile("prefetch.global.L2 [%0];" ::"l"(address));
    }
    __device__ void enter(uint32_t rank) {
        rank_ = rank;
        begin_ = tiles_.starts[rank];
        end_ = tiles_.starts[rank + 1];
        list_ = store_.lists[tiles_.probed[rank]];
        term_ = tiles_.terms[rank];
    }
    __device__ const uint4* words(uint32_t in_list, uint32_t slice) const {
        return reinterpret_cast<const uint4*>(list_.tiles) +
               (size_t{in_list} * store_.layout.slices + slice) * (tile_entries * width / 16);
    }

    const StoreView& store_;
    QueryTiles tiles_;
    uint32_t rank_ = 0, begin_ = 0, end_ = 0;
    DeviceList list_{};
    float term_ = 0;
};

// A warp's run of tiles. The warp loads the next tile while it sums one.
template <class Shape, int width>
class TileRun {
  public:
    __device__ TileRun(const TileWalk<width>& walk, uint32_t tile, uint32_t end, uint32_t table)
        : walk_(walk), tile_(tile), end_(end), asked_(tile), table_(table) {
        if (tile_ >= end_) return;
        ask_ahead();
        walk_.seek(tile_);
        next_ = walk_.load(tile_);
    }
    __device__ bool done() const { return tile_ >= end_; }

    // Sums `count` slices of the next tile, from `slice` on. Their tables are in shared memory.
    __device__ __forceinline__ void add_slices(uint32_t slice, uint32_t count) {
        for (uint32_t i = 0; i < count; ++i) {
            if (slice + i > 0) walk_.load_slice(tile_, slice + i, next_.codes);
            sum_ = add_one(table_ + i * slice_bytes, next_.codes, columns_, sum_);
        }
    }
    // For codes of one slice: loads the codes of the next tile before it uses this tile's.
    __device__ __forceinline__ void add_tile(BlockSelect<Shape>& select) {
        const Tile here = next_;
        ask_ahead();
        if (tile_ + 1 < end_) next_ = walk_.load(tile_ + 1);
        sum_ = add_one(table_, here.codes, columns_, 0.0f);
        take(select, here);
        ++tile_;
    }
    // Called after the last slice of a tile.
    __device__ __forceinline__ void finish_tile(BlockSelect<Shape>& select) {
        take(select, next_);
        ask_ahead();
        if (++tile_ < end_) next_ = walk_.load(tile_);
        sum_ = 0;
    }

  private:
    using Tile = typename TileWalk<width>::Tile;
    static constexpr uint32_t slice_bytes = codewords * width * sizeof(float);

    __device__ __forceinline__ void ask_ahead() {
        if (tile_ + 16 < asked_ || asked_ >= end_) return;
        walk_.ask_for(asked_, end_);
        asked_ += 32;
    }
    __device__ __forceinline__ void take(BlockSelect<Shape>& select, const Tile& tile) {
        const float distance = (tile.term + tile.offset) + sum_;
        select.collect(distance <= select.bound(), make_key(distance, tile.entry));
    }

    TileWalk<width> walk_;
    uint32_t tile_, end_;
    uint32_t asked_;  // tiles before this one have been prefetched
    const LaneColumns<width> columns_;
    const uint32_t table_;
    Tile next_{};
    float sum_ = 0;
};

// Called by the whole block, with all tables in shared memory. Warps scan independently until one
// has a full segment that pruning does not empty; then the block cuts.
template <class Shape, int width>
__device__ void scan_freely(BlockSelect<Shape>& select, TileRun<Shape, width>& run, uint32_t slices,
                            uint32_t candidates) {
    const bool prunes = candidates <= BlockSelect<Shape>::most_pruned;
    while (true) {
        while (!run.done()) {
            if (select.room() < 32 && prunes) select.prune();
            if (select.room() < 32) break;
            if (slices == 1) {
                run.add_tile(select);
            } else {
                run.add_slices(0, slices);
                run.finish_tile(select);
            }
        }
        if (!__syncthreads_or(!run.done())) return;
        select.cut();
    }
}

// Called by the whole block, if shared memory does not hold all slices. Warps scan in lockstep,
// tile by tile, and the block reloads the tables for each group of slices.
template <class Shape, int width>
__device__ void scan_in_step(const ScanArguments& a, uint32_t query, BlockSelect<Shape>& select,
                             TileRun<Shape, width>& run, float* table) {
    const uint32_t slices = a.scan.store.layout.slices;
    while (__syncthreads_or(!run.done())) {
        for (uint32_t slice = 0; slice < slices; slice += a.resident_slices) {
            __syncthreads();
            load_query_table<Shape::threads>(a.scan, a.resident_slices, query, slice, table);
            __syncthreads();
            if (!run.done()) run.add_slices(slice, min(a.resident_slices, slices - slice));
        }
        if (!run.done()) run.finish_tile(select);
        if (__syncthreads_or(select.room() < 32)) select.cut();
    }
}

// Scans a block's share of a query's tiles; each warp has its own run.
template <class Shape, int width, bool mixed>
__device__ void scan_part(const ScanArguments& a, uint32_t query, uint32_t split,
                          typename BlockSelect<Shape>::Storage& storage, float* table) {
    const StoreOf<mixed> store = store_of<mixed>(a.scan, query);
    const ListQuery wanted = a.scan.queries.wanted[query];
    const TileWalk<width> walk(store, a, query, min(wanted.probes, store.model.shape.lists));
    const uint32_t tiles = walk.tiles();
    const uint32_t first = part_begin(tiles, split, a.scan.splits);
    const uint32_t count = part_begin(tiles, split + 1, a.scan.splits) - first;
    const uint32_t warp = threadIdx.x / 32;

    BlockSelect<Shape> select(storage, list_candidates(wanted.k));
    TileRun<Shape, width> run(walk, first + part_begin(count, warp, Shape::warps),
                              first + part_begin(count, warp + 1, Shape::warps),
                              shared_address(table));
    if (store.layout.slices <= a.resident_slices) {
        if (count > 0) load_query_table<Shape::threads>(a.scan, a.resident_slices, query, 0, table);
        __syncthreads();
        scan_freely(select, run, store.layout.slices, list_candidates(wanted.k));
    } else {
        scan_in_step(a, query, select, run, table);
    }
    select.cut();
    put_kept(select, a.scan, query, split);
}

template <class Shape, int width, bool mixed>
__global__ void __launch_bounds__(Shape::threads, 512 / Shape::threads)
    scan_by_query(ScanArguments a) {
    using Storage = typename BlockSelect<Shape>::Storage;
    auto* storage = shared_memory<Storage>();
    auto* table = reinterpret_cast<float*>(storage + 1);
    wait_for_kernels_before();
    const uint32_t queries = a.scan.only ? *a.scan.only_count : a.scan.queries.count;
    for (uint32_t task = blockIdx.x; task < queries * a.scan.splits; task += gridDim.x) {
        const uint32_t query = task / a.scan.splits;
        scan_part<Shape, width, mixed>(a, a.scan.only ? a.scan.only[query] : query,
                                       task % a.scan.splits, *storage, table);
        __syncthreads();
    }
}

template <class Shape, int width, bool mixed>
void launch_scan(const QueryScan& scan, const Context& context, Turn turn) {
    constexpr size_t fixed = sizeof(typename BlockSelect<Shape>::Storage);
    static_assert(fixed % 16 == 0);
    const size_t slice_bytes = codewords * width * sizeof(float);
    const size_t room = context.block_shared_bytes - fixed;
    const auto resident =
        static_cast<uint32_t>(std::clamp<size_t>(room / slice_bytes, 1, scan.store.layout.slices));
    const uint32_t blocks = scan.only ? 4 * context.processors : scan.queries.count * scan.splits;
    launch("scan_by_query", scan_by_query<Shape, width, mixed>,
           {blocks, Shape::threads, fixed + resident * slice_bytes, turn},
           ScanArguments{scan, resident});
}

template <class Shape, bool mixed = false>
void launch_width(const QueryScan& scan, const Context& context, Turn turn) {
    if (scan.store.layout.width == 32)
        launch_scan<Shape, 32, mixed>(scan, context, turn);
    else
        launch_scan<Shape, 16, mixed>(scan, context, turn);
}

__global__ void find_overflows(CandidateView candidates, uint32_t queries, uint32_t* overflowed,
                               uint32_t* count) {
    const uint32_t query = blockIdx.x * blockDim.x + threadIdx.x;
    if (query < queries && candidates.counts[query] > candidates.room)
        overflowed[atomicAdd(count, 1u)] = query;
}

}  // namespace

void scan_queries(const QueryScan& scan, const Context& context, Turn turn) {
    const uint32_t candidates = list_candidates(scan.queries.k);
    auto* scan_all = &launch_width<LargeSelect>;
    static_assert(list_candidates(fast_list_k) <= SmallSelect::kept);
    if (scan.queries.stores)
        scan_all = &launch_width<SmallSelect, true>;
    else if (candidates <= SmallSelect::kept)
        scan_all = &launch_width<SmallSelect>;
    else if (candidates <= MediumSelect::kept)
        scan_all = &launch_width<MediumSelect>;
    scan_all(scan, context, turn);
}

void list_overflows(const CandidateView& candidates, uint32_t queries, uint32_t* overflowed,
                    uint32_t* count, cudaStream_t stream) {
    clear_async(count, 1, stream);
    launch("find_overflows", find_overflows, {divide_up(queries, 256u), 256, 0, stream}, candidates,
           queries, overflowed, count);
}

}  // namespace pgwarp::gpu
