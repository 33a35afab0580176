#include "kernels/cuda/scan_lists.h"

#include "kernels/cuda/float_rows.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/look_up.cuh"
#include "kernels/cuda/tables.cuh"

#include <algorithm>

namespace pgwarp::gpu {

namespace {

constexpr unsigned threads = 256;
constexpr unsigned warps = threads / 32;
constexpr unsigned blocks_per_processor = 3;
// Entries a thread sums up at a time where a code has several slices.
constexpr int several = 8;

enum class Pass { bounds, candidates };

struct Group {
    uint32_t query[group_queries];
    float scale[group_queries];
    float term[group_queries];
    float bound[group_queries];  // NaN where there is no query
    uint32_t place[group_queries], limit[group_queries];
};

template <int width>
struct ScanShared {
    uint2 table[codewords * width];
    Group group;
    WorkItem item;
    uint32_t next;
};

// One slice of four queries' tables, interleaved on the way.
template <int width>
__device__ void load_tables(const ListScan& scan, uint32_t slice, ScanShared<width>& shared) {
    const uint32_t units = table_units(width);
    const uint4* from[group_queries];
#pragma unroll
    for (int q = 0; q < group_queries; ++q)
        from[q] = scan.tables +
                  (size_t{shared.group.query[q]} * scan.store.layout.slices + slice) * units;
#pragma unroll 2
    for (uint32_t unit = threadIdx.x; unit < units; unit += threads) {
        uint4 part[group_queries];
#pragma unroll
        for (int q = 0; q < group_queries; ++q) part[q] = __ldcg(from[q] + unit);
        const uint32_t pair = unit % (width / 2), code = unit / (width / 2) * 4;
        const auto store = [&](int i, uint32_t a, uint32_t b, uint32_t c, uint32_t d) {
            const uint4 columns{__byte_perm(a, b, 0x5410), __byte_perm(c, d, 0x5410),
                                __byte_perm(a, b, 0x7632), __byte_perm(c, d, 0x7632)};
            *reinterpret_cast<uint4*>(&shared.table[(code + i) * width + 2 * pair]) = columns;
        };
        store(0, part[0].x, part[1].x, part[2].x, part[3].x);
        store(1, part[0].y, part[1].y, part[2].y, part[3].y);
        store(2, part[0].z, part[1].z, part[2].z, part[3].z);
        store(3, part[0].w, part[1].w, part[2].w, part[3].w);
    }
}

// The item's queries. Where there are fewer than four, the first stands in, and finds nothing.
template <Pass pass>
__device__ void load_group(const ListScan& scan, const WorkItem& item, Group& group) {
    const uint32_t i = threadIdx.x;
    const bool real = i < item.visits;
    const Visit visit = scan.bins.visits[item.first_visit + (real ? i : 0)];
    group.query[i] = visit.query;
    group.scale[i] = table_scale(scan.queries.norms[visit.query], scan.store.largest_word);
    group.term[i] = visit.term;
    if constexpr (pass == Pass::bounds) {
        group.place[i] = visit.place;
        group.limit[i] = real ? visit.limit : 0;
    } else {
        group.bound[i] = real ? scan.bounds[visit.query] : __builtin_nanf("");
    }
}

// What becomes of an entry's four sums.
template <Pass pass>
__device__ __forceinline__ void take_sums(const ListScan& scan, const DeviceList& list,
                                          const Group& group, uint32_t entry, float offset,
                                          const float (&sum)[group_queries]) {
    float distance[group_queries];
#pragma unroll
    for (int q = 0; q < group_queries; ++q)
        distance[q] = fmaf(sum[q], group.scale[q], offset) + group.term[q];
    if constexpr (pass == Pass::bounds) {
#pragma unroll
        for (int q = 0; q < group_queries; ++q)
            if (entry < group.limit[q])
                scan.distances[size_t{group.query[q]} * scan.distance_room + group.place[q] +
                               entry] = distance[q];
    } else {
        bool any = false;
#pragma unroll
        for (int q = 0; q < group_queries; ++q) any |= distance[q] <= group.bound[q];
        if (!any) return;
#pragma unroll
        for (int q = 0; q < group_queries; ++q) {
            if (!(distance[q] <= group.bound[q])) continue;
            const uint32_t query = group.query[q];
            const uint32_t at = atomicAdd(&scan.candidates.counts[query], 1u);
            if (at < scan.candidates.room)
                scan.candidates.keys[size_t{query} * scan.candidates.room + at] =
                    make_key(distance[q], list.first + entry);
        }
    }
}

// Codes of one slice: whole lists stream by.
template <int width, Pass pass>
__device__ void scan_streaming(const ListScan& scan, ScanShared<width>& shared,
                               const DeviceList& list) {
    const WorkItem item = shared.item;
    const LaneColumns<width> columns;
    __syncthreads();
    load_tables(scan, 0, shared);
    __syncthreads();
    const auto* tiles = reinterpret_cast<const uint4*>(list.tiles);
    constexpr uint32_t tile_words = tile_entries * width / 16;
    const uint32_t end = item.first_tile + item.tiles;
    uint32_t tile = item.first_tile + threadIdx.x / 32;
    CodeWords<width> next;
    float next_offset = 0;
    const auto fetch = [&](uint32_t t) {
        if (t >= end) return;
        next.load(tiles + t * size_t{tile_words});
        next_offset = __ldg(list.offsets + t * tile_entries + lane_id());
    };
    fetch(tile);
    for (; tile < end; tile += warps) {
        const CodeWords<width> codes = next;
        const float offset = next_offset;
        fetch(tile + warps);
        float sum[group_queries] = {};
        add_four(shared.table, codes, columns, sum);
        take_sums<pass>(scan, list, shared.group, tile * tile_entries + lane_id(), offset, sum);
    }
}

// Several slices: the sums of some entries wait in registers while the tables change.
template <int width, Pass pass>
__device__ void scan_slices(const ListScan& scan, ScanShared<width>& shared,
                            const DeviceList& list, uint32_t first_tile, uint32_t tile_count) {
    const LaneColumns<width> columns;
    const uint32_t slices = scan.store.layout.slices;
    const auto* tiles = reinterpret_cast<const uint4*>(list.tiles);
    constexpr uint32_t slice_words = tile_entries * width / 16;
    float sum[several][group_queries] = {};
    for (uint32_t slice = 0; slice < slices; ++slice) {
        __syncthreads();
        load_tables(scan, slice, shared);
        __syncthreads();
#pragma unroll
        for (int i = 0; i < several; ++i) {
            const uint32_t tile = threadIdx.x / 32 + i * warps;
            if (tile >= tile_count) continue;
            CodeWords<width> codes;
            codes.load(tiles + (size_t{first_tile + tile} * slices + slice) * slice_words);
            add_four(shared.table, codes, columns, sum[i]);
        }
    }
#pragma unroll
    for (int i = 0; i < several; ++i) {
        const uint32_t tile = threadIdx.x / 32 + i * warps;
        if (tile >= tile_count) continue;
        const uint32_t entry = (first_tile + tile) * tile_entries + lane_id();
        take_sums<pass>(scan, list, shared.group, entry, __ldg(list.offsets + entry), sum[i]);
    }
}

// Blocks take items until there are no more.
template <int width, bool one_slice, Pass pass>
__global__ void __launch_bounds__(threads, blocks_per_processor) scan_items(ListScan scan) {
    auto& shared = *shared_memory<ScanShared<width>>();
    const uint32_t items = scan.bins.item_count[0];
    uint32_t* taken = scan.bins.item_count + 1;
    if (threadIdx.x == 0) shared.next = atomicAdd(taken, 1u);
    while (true) {
        __syncthreads();
        const uint32_t at = shared.next;
        if (at >= items) break;
        __syncthreads();
        if (threadIdx.x < group_queries) {
            const WorkItem item = scan.bins.items[at];
            load_group<pass>(scan, item, shared.group);
            if (threadIdx.x == 0) {
                shared.item = item;
                shared.next = atomicAdd(taken, 1u);
            }
        }
        __syncthreads();
        const DeviceList list = scan.store.lists[shared.item.list];
        if constexpr (one_slice) {
            scan_streaming<width, pass>(scan, shared, list);
        } else {
            const WorkItem item = shared.item;
            for (uint32_t done = 0; done < item.tiles; done += several * warps)
                scan_slices<width, pass>(scan, shared, list, item.first_tile + done,
                                         min(several * warps, item.tiles - done));
        }
    }
}

template <int width, bool one_slice, Pass pass>
void launch_scan(const ListScan& scan, uint32_t processors, cudaStream_t stream) {
    launch("scan_items", scan_items<width, one_slice, pass>,
           {processors * blocks_per_processor, threads, sizeof(ScanShared<width>), stream}, scan);
}

template <Pass pass>
void launch_pass(const ListScan& scan, uint32_t processors, cudaStream_t stream) {
    const CodeLayout& layout = scan.store.layout;
    auto* launch_one = layout.width == 32 ? &launch_scan<32, true, pass>
                                          : &launch_scan<16, true, pass>;
    auto* launch_several = layout.width == 32 ? &launch_scan<32, false, pass>
                                              : &launch_scan<16, false, pass>;
    (layout.slices == 1 ? launch_one : launch_several)(scan, processors, stream);
}

template <class Shape>
__global__ void __launch_bounds__(Shape::threads, Shape::blocks)
    bounds_of(StoreView store, QueryView queries, FirstLists first, const float* distances,
              float* bounds) {
    auto& storage = *shared_memory<typename BlockSelect<Shape>::Storage>();
    const uint32_t query = blockIdx.x;
    const uint32_t* probed = queries.probed + size_t{query} * queries.probes;
    uint32_t length = 0;
    for (uint32_t i = 0; i < first.counts[query] && length < first.room; ++i)
        length += store.lists[probed[i]].count;
    length = min(length, first.room);
    BlockSelect<Shape> select(storage, candidates_for(queries.wanted[query].k));
    const FloatRow row({distances + size_t{query} * first.room, nullptr, 1.0f, 0, 0}, 0,
                       static_cast<int>(length));
    select_row(select, row);
    if (threadIdx.x == 0) bounds[query] = select.bound();
}

template <class Shape>
void launch_bounds(const StoreView& store, const QueryView& queries, const FirstLists& first,
                   const float* distances, float* bounds, cudaStream_t stream) {
    launch("bounds_of", bounds_of<Shape>,
           {queries.count, Shape::threads, sizeof(typename BlockSelect<Shape>::Storage), stream},
           store, queries, first, distances, bounds);
}

}  // namespace

void scan_lists(const ListScan& scan, uint32_t processors, cudaStream_t stream) {
    if (scan.distances)
        launch_pass<Pass::bounds>(scan, processors, stream);
    else
        launch_pass<Pass::candidates>(scan, processors, stream);
}

void find_bounds(const StoreView& store, const QueryView& queries, const FirstLists& first,
                 const float* distances, float* bounds, cudaStream_t stream) {
    const uint32_t candidates = candidates_for(queries.k);
    auto* find_all = &launch_bounds<LargeSelect>;
    if (candidates <= SmallSelect::kept)
        find_all = &launch_bounds<SmallSelect>;
    else if (candidates <= MediumSelect::kept)
        find_all = &launch_bounds<MediumSelect>;
    find_all(store, queries, first, distances, bounds, stream);
}

}  // namespace pgwarp::gpu
