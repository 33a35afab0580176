#include "kernels/cuda/lists/scan_narrowed.h"

#include "kernels/cuda/select/block_select.cuh"
#include "kernels/cuda/base/launch.cuh"
#include "kernels/cuda/lists/conditions.cuh"
#include "kernels/cuda/lists/look_up.cuh"
#include "kernels/cuda/lists/query_table.cuh"
#include "kernels/cuda/lists/query_tiles.cuh"

#include <algorithm>

namespace pgwarp::gpu {

namespace {

struct NarrowArguments {
    QueryScan scan;
    NarrowingView narrowing;
    uint32_t resident_slices;  // of the table in shared memory: all, or none
};

// A lane's entry in a tile of one of the query's lists.
struct LaneEntry {
    ListAttributes attributes;
    const uint4* tile;  // slice 0 of the tile
    const DeviceList* list;
    float term;
    uint32_t position;  // in the list
    bool real;          // not padding
};

// Iterates over the tiles of a query's lists.
class ListWalk {
  public:
    __device__ ListWalk(const QueryScan& scan, uint32_t query, uint32_t probes)
        : store_(scan.store), tiles_(scan.queries, query, probes) {}

    __device__ uint32_t start(uint32_t rank) const {
        return tiles_.starts[min(rank, tiles_.probes)];
    }
    __device__ uint32_t rank_of(uint32_t tile) const { return tiles_.rank_of(tile); }

    __device__ void seek(uint32_t tile) { rank_ = rank_of(tile); }
    // Tiles of successive calls must not decrease.
    __device__ __forceinline__ LaneEntry entry(uint32_t tile) {
        while (tile >= tiles_.starts[rank_ + 1]) ++rank_;
        return entry_of(rank_, tile - tiles_.starts[rank_], lane_id());
    }
    __device__ __forceinline__ LaneEntry entry_of(uint32_t rank, uint32_t in_list,
                                                  uint32_t lane) const {
        LaneEntry entry;
        entry.list = store_.lists + tiles_.probed[rank];
        entry.attributes = ListAttributes(*entry.list);
        entry.tile = reinterpret_cast<const uint4*>(entry.list->tiles) +
                     size_t{in_list} * (store_.layout.tile_bytes() / 16);
        entry.term = tiles_.terms[rank];
        entry.position = in_list * tile_entries + lane;
        entry.real = entry.position < entry.list->count;
        return entry;
    }

  private:
    const StoreView& store_;
    QueryTiles tiles_;
    uint32_t rank_ = 0;
};

// Sums that overflowed to NaN count as infinitely far, as on the CPU.
__device__ __forceinline__ float finite_or_infinite(float distance) {
    return distance == distance ? distance : bits_float(infinity_bits);
}

// A warp's run of tiles, some at a time: the loads of their attributes are in flight together.
template <class Shape, int width>
class NarrowRun {
  public:
    static constexpr int group = 4;  // tiles

    __device__ NarrowRun(const NarrowArguments& a, const ListWalk& walk, uint32_t query,
                         uint32_t tile, uint32_t end, const float* table)
        : a_(a),
          walk_(walk),
          wanted_(a.scan.queries.wanted[query]),
          conditions_(a.narrowing.conditions + size_t{query} * a.narrowing.condition_stride),
          values_(a.narrowing.values + size_t{query} * a.narrowing.value_stride),
          tile_(tile),
          end_(end),
          shared_table_(a.resident_slices > 0 ? shared_address(table) : 0),
          global_table_(a.scan.tables + size_t{query} * a.scan.store.layout.slices * slice_floats) {
        if (tile_ < end_) walk_.seek(tile_);
    }
    __device__ bool done() const { return tile_ >= end_; }
    __device__ uint32_t passed() const { return passed_; }
    __device__ uint32_t beyond() const { return beyond_; }

    // Called by all lanes; the selection has room for a group.
    __device__ __forceinline__ void step(BlockSelect<Shape>& select) {
        LaneEntry entry[group];
        bool passes[group];
#pragma unroll
        for (int i = 0; i < group; ++i) {
            passes[i] = false;
            if (tile_ + i >= end_) continue;
            entry[i] = walk_.entry(tile_ + i);
            passes[i] = entry[i].real;
        }
        for (uint32_t c = 0; c < wanted_.conditions; ++c) {
            const PackedCondition condition = conditions_[c];
#pragma unroll
            for (int i = 0; i < group; ++i)
                if (passes[i])
                    passes[i] = passes_condition(a_.narrowing.attributes, condition, values_,
                                                 entry[i].attributes, entry[i].position);
        }
#pragma unroll
        for (int i = 0; i < group; ++i) {
            const unsigned lanes = __ballot_sync(whole_warp, passes[i]);
            if (lanes == 0) continue;
            passed_ += __popc(lanes);
            take(select, entry[i], passes[i]);
        }
        tile_ += group;
    }

  private:
    static constexpr uint32_t slice_floats = codewords * width;

    __device__ __forceinline__ void take(BlockSelect<Shape>& select, const LaneEntry& entry,
                                         bool passes) {
        float sum = 0;
        for (uint32_t slice = 0; slice < a_.scan.store.layout.slices; ++slice) {
            CodeWords<width> codes;
            codes.load(entry.tile + slice * (tile_entries * width / 16));
            sum = a_.resident_slices > 0
                      ? add_one(shared_table_ + slice * slice_floats * sizeof(float), codes,
                                columns_, sum)
                      : add_from_memory(global_table_ + slice * slice_floats, codes, sum);
        }
        // Offsets are padded as codes are.
        const float offset = __ldg(entry.list->offsets + entry.position);
        const float distance = finite_or_infinite((entry.term + offset) + sum);
        if (passes)
            passes = distance > wanted_.floor_distance ||
                     (distance == wanted_.floor_distance &&
                      tid_at(*entry.list, entry.position) > wanted_.floor_id);
        beyond_ += __popc(__ballot_sync(whole_warp, passes));
        select.collect(passes && distance <= select.bound(),
                       make_key(distance, entry.list->first + entry.position));
    }
    // As add_one(), with the table in global memory.
    __device__ float add_from_memory(const float* table, const CodeWords<width>& codes, float sum) {
        float part[4] = {};
#pragma unroll
        for (int step = 0; step < width; ++step) {
            const uint32_t at = scaled_place(codes, columns_, step) / (256 / width);
            part[step % 4] += __ldg(table + at);
        }
        return sum + ((part[0] + part[1]) + (part[2] + part[3]));
    }

    const NarrowArguments& a_;
    ListWalk walk_;
    const ListQuery wanted_;
    const PackedCondition* conditions_;
    const uint64_t* values_;
    uint32_t tile_, end_;
    const LaneColumns<width> columns_;
    const uint32_t shared_table_;
    const float* global_table_;
    uint32_t passed_ = 0, beyond_ = 0;  // of the warp
};

// Scans a block's share of a query's tiles; each warp has its own run.
template <class Shape, int width>
__device__ void narrow_part(const NarrowArguments& a, uint32_t query, uint32_t split,
                            typename BlockSelect<Shape>::Storage& storage, float* table) {
    const StoreView& store = a.scan.store;
    const ListQuery wanted = a.scan.queries.wanted[query];
    const uint32_t probes = min(wanted.probes, store.model.shape.lists);
    const ListWalk walk(a.scan, query, probes);
    const uint32_t begin = walk.start(wanted.first_probe);
    const uint32_t tiles = walk.start(probes) - begin;
    const uint32_t first = begin + part_begin(tiles, split, a.scan.splits);
    const uint32_t count = begin + part_begin(tiles, split + 1, a.scan.splits) - first;
    const uint32_t warp = threadIdx.x / 32;

    if (count > 0 && a.resident_slices > 0)
        load_query_table<Shape::threads>(a.scan, a.resident_slices, query, 0, table);
    __syncthreads();
    BlockSelect<Shape> select(storage, list_candidates(wanted.k));
    using Run = NarrowRun<Shape, width>;
    Run run(a, walk, query, first + part_begin(count, warp, Shape::warps),
            first + part_begin(count, warp + 1, Shape::warps), table);
    constexpr int step_room = 32 * Run::group;
    static_assert(Shape::segment >= step_room);
    const bool prunes = list_candidates(wanted.k) <= BlockSelect<Shape>::most_pruned;
    while (true) {
        while (!run.done()) {
            if (select.room() < step_room && prunes) select.prune();
            if (select.room() < step_room) break;
            run.step(select);
        }
        if (!__syncthreads_or(!run.done())) break;
        select.cut();
    }
    select.cut();
    put_kept(select, a.scan, query, split);
    if (lane_id() == 0 && run.passed() > 0) {
        atomicAdd(&a.narrowing.searched[query].passed, run.passed());
        atomicAdd(&a.narrowing.beyond[query], run.beyond());
    }
}

template <class Shape, int width>
__global__ void __launch_bounds__(Shape::threads, 512 / Shape::threads)
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
constexpr unsigned near_blocks = 8;  // for each query

struct NearArguments {
    QueryScan scan;
    NarrowingView narrowing;
};

// The distance of one entry, by a single thread.
__device__ float entry_distance(const QueryScan& scan, uint32_t query, const LaneEntry& entry) {
    const CodeLayout& layout = scan.store.layout;
    const float* table = scan.tables + size_t{query} * layout.slices * codewords * layout.width;
    const auto* tile = reinterpret_cast<const uint8_t*>(entry.tile);
    float sum = 0;
    for (uint32_t j = 0; j < layout.m; ++j) {
        const uint32_t code = __ldg(tile + layout.place(entry.position % tile_entries, j));
        sum +=
            __ldg(table + (j / layout.width * codewords + code) * layout.width + j % layout.width);
    }
    return (entry.term + __ldg(entry.list->offsets + entry.position)) + sum;
}

__global__ void __launch_bounds__(near_threads) count_near_entries(NearArguments a) {
    const uint32_t query = blockIdx.x / near_blocks, part = blockIdx.x % near_blocks;
    const ListQuery wanted = a.scan.queries.wanted[query];
    SearchedLists* searched = a.narrowing.searched + query;
    const float bound = a.narrowing.near_bounds[query];
    if (!(bound == bound)) return;  // the same for the whole block
    const uint32_t probes = min(wanted.probes, a.scan.store.model.shape.lists);
    const ListWalk walk(a.scan, query, probes);
    const uint32_t begin = walk.start(wanted.first_probe);
    const uint64_t places = uint64_t{walk.start(probes) - begin} * tile_entries;
    const auto step = static_cast<uint32_t>(places / near_sample + 1);
    uint32_t near[3] = {};  // all, before, last
    const uint64_t stride = uint64_t{near_blocks} * near_threads * step;
    for (uint64_t at = (uint64_t{part} * near_threads + threadIdx.x) * step; at < places;
         at += stride) {
        const uint32_t tile = begin + static_cast<uint32_t>(at / tile_entries);
        const uint32_t rank = walk.rank_of(tile);
        const LaneEntry entry =
            walk.entry_of(rank, tile - walk.start(rank), static_cast<uint32_t>(at % tile_entries));
        if (!entry.real || !(entry_distance(a.scan, query, entry) <= bound)) continue;
        near[0] += step;
        if (rank >= probes / 2)
            near[2] += step;
        else if (rank >= probes / 4)
            near[1] += step;
    }
    __syncwarp();
#pragma unroll
    for (int i = 0; i < 3; ++i) near[i] = __reduce_add_sync(whole_warp, near[i]);
    if (lane_id() != 0 || near[0] == 0) return;
    atomicAdd(&searched->near, near[0]);
    if (near[1] > 0) atomicAdd(&searched->near_before, near[1]);
    if (near[2] > 0) atomicAdd(&searched->near_last, near[2]);
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

void count_near(const QueryScan& scan, const NarrowingView& narrowing, cudaStream_t stream) {
    launch("count_near", count_near_entries,
           {scan.queries.count * near_blocks, near_threads, 0, stream},
           NearArguments{scan, narrowing});
}

}  // namespace pgwarp::gpu
