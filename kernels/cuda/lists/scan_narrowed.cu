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

// Distances by code of one query's entries, by lanes of a warp.
template <int width>
class CodeDistances {
  public:
    static constexpr uint32_t slice_floats = codewords * width;

    // `table`: in shared memory, or null: the query's table is read from global memory.
    __device__ CodeDistances(const QueryScan& scan, uint32_t query, const float* table)
        : slices_(scan.store.layout.slices),
          in_shared_(table != nullptr),
          shared_table_(table ? shared_address(table) : 0),
          global_table_(scan.tables + size_t{query} * slices_ * slice_floats) {}

    // Called by all lanes with the entries of one tile. NaN: padding.
    __device__ __forceinline__ float of(const LaneEntry& entry) const {
        float sum = 0;
        for (uint32_t slice = 0; slice < slices_; ++slice) {
            CodeWords<width> codes;
            codes.load(entry.tile + slice * (tile_entries * width / 16));
            sum = in_shared_ ? add_one(shared_table_ + slice * slice_floats * sizeof(float), codes,
                                       columns_, sum)
                             : add_from_memory(global_table_ + slice * slice_floats, codes, sum);
        }
        // Offsets are padded as codes are.
        return (entry.term + __ldg(entry.list->offsets + entry.position)) + sum;
    }

  private:
    // As add_one(), with the table in global memory.
    __device__ float add_from_memory(const float* table, const CodeWords<width>& codes,
                                     float sum) const {
        float part[4] = {};
#pragma unroll
        for (int step = 0; step < width; ++step) {
            const uint32_t at = scaled_place(codes, columns_, step) / (256 / width);
            part[step % 4] += __ldg(table + at);
        }
        return sum + ((part[0] + part[1]) + (part[2] + part[3]));
    }

    const uint32_t slices_;
    const bool in_shared_;
    const LaneColumns<width> columns_;
    const uint32_t shared_table_;
    const float* global_table_;
};

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
          distances_(a.scan, query, a.resident_slices > 0 ? table : nullptr) {
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
    __device__ __forceinline__ void take(BlockSelect<Shape>& select, const LaneEntry& entry,
                                         bool passes) {
        const float distance = finite_or_infinite(distances_.of(entry));
        if (passes)
            passes = distance > wanted_.floor_distance ||
                     (distance == wanted_.floor_distance &&
                      tid_at(*entry.list, entry.position) > wanted_.floor_id);
        beyond_ += __popc(__ballot_sync(whole_warp, passes));
        select.collect(passes && distance <= select.bound(),
                       make_key(distance, entry.list->first + entry.position));
    }

    const NarrowArguments& a_;
    ListWalk walk_;
    const ListQuery wanted_;
    const PackedCondition* conditions_;
    const uint64_t* values_;
    uint32_t tile_, end_;
    const CodeDistances<width> distances_;
    uint32_t passed_ = 0, beyond_ = 0;  // of the warp
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
    add_kept(select, a.scan.candidates, query);
    if (lane_id() == 0 && run.passed() > 0) {
        NarrowedCounts& counts = a.narrowing.counts[query];
        atomicAdd(&counts.searched.passed, run.passed());
        atomicAdd(&counts.beyond, run.beyond());
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
// About how many entries are looked at for a query, by whole tiles.
constexpr uint32_t near_entries = 65536;

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
    const ListWalk walk(a.scan, query, probes);
    const uint32_t begin = walk.start(wanted.first_probe);
    const uint32_t tiles = walk.start(probes) - begin;
    const uint32_t step = tiles / (near_entries / tile_entries) + 1;
    if (a.resident_slices > 0)
        load_query_table<near_threads>(a.scan, a.resident_slices, query, 0, table);
    __syncthreads();
    const CodeDistances<width> distances(a.scan, query, a.resident_slices > 0 ? table : nullptr);
    uint32_t near[near_groups] = {};  // of the warp
    constexpr uint32_t warps = near_threads / 32;
    for (uint32_t at = (part * warps + threadIdx.x / 32) * step; at < tiles;
         at += a.parts * warps * step) {
        const uint32_t rank = walk.rank_of(begin + at);
        const LaneEntry entry = walk.entry_of(rank, begin + at - walk.start(rank), lane_id());
        const bool is_near = entry.real && distances.of(entry) <= bound;
        const uint32_t count = step * __popc(__ballot_sync(whole_warp, is_near));
        const uint32_t group = near_group(rank, probes);
#pragma unroll
        for (uint32_t g = 0; g < near_groups; ++g) near[g] += g == group ? count : 0;
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
