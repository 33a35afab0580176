#include "kernels/cuda/lists/bins.h"

#include "kernels/cuda/select/keys.h"
#include "kernels/cuda/base/launch.cuh"
#include "kernels/cuda/base/stream.h"
#include "kernels/cuda/select/warp_select.cuh"

namespace pgwarp::gpu {

namespace {

constexpr unsigned threads = 256;
constexpr unsigned scan_threads = 1024;

struct SortArguments {
    StoreView store;
    QueryView queries;
    FirstLists first;       // counts null: all probes
    const uint32_t* ranks;  // for all probes: position of a visit in its bin; else null
    uint32_t* cursors;      // for first lists: next free position of each bin; else null
    uint32_t tiles_per_item;
    Bins bins;
};

__device__ uint32_t visits_of(const SortArguments& a, uint32_t query) {
    return a.first.counts ? a.first.counts[query]
                          : min(a.queries.wanted[query].probes, a.store.model.shape.lists);
}
__device__ uint32_t bin_of(const SortArguments& a, uint32_t query, uint32_t list) {
    return query / a.bins.part_queries * a.store.model.shape.lists + list;
}

__global__ void __launch_bounds__(threads) count_visits(SortArguments a) {
    const size_t at = size_t{blockIdx.x} * threads + threadIdx.x;
    const auto query = static_cast<uint32_t>(at / a.queries.probes);
    const auto rank = static_cast<uint32_t>(at % a.queries.probes);
    if (query >= a.queries.count || rank >= visits_of(a, query)) return;
    const uint32_t list = a.queries.probed[at];
    if (a.store.lists[list].count > 0) atomicAdd(&a.bins.sizes[bin_of(a, query, list)], 1u);
}

__device__ uint32_t items_of(const SortArguments& a, uint32_t bin, uint32_t visits) {
    const uint32_t count = a.store.lists[bin % a.store.model.shape.lists].count;
    const uint32_t tiles = (count + tile_entries - 1) / tile_entries;
    return (visits + group_queries - 1) / group_queries *
           ((tiles + a.tiles_per_item - 1) / a.tiles_per_item);
}

// One block: exclusive prefix sums turn sizes into start positions, of visits and of items.
__global__ void __launch_bounds__(scan_threads) scan_bins(SortArguments a) {
    __shared__ uint2 sums[scan_threads / 32];
    const Bins& bins = a.bins;
    const uint32_t each = (bins.bins + scan_threads - 1) / scan_threads;
    const uint32_t begin = min(threadIdx.x * each, bins.bins), end = min(begin + each, bins.bins);
    uint2 mine{0, 0};
    for (uint32_t bin = begin; bin < end; ++bin) {
        mine.x += bins.sizes[bin];
        mine.y += items_of(a, bin, bins.sizes[bin]);
    }
    uint2 through = mine;
#pragma unroll
    for (int distance = 1; distance < 32; distance *= 2) {
        const uint32_t x = __shfl_up_sync(whole_warp, through.x, distance);
        const uint32_t y = __shfl_up_sync(whole_warp, through.y, distance);
        if (lane_id() >= distance) through.x += x, through.y += y;
    }
    if (lane_id() == 31) sums[threadIdx.x / 32] = through;
    __syncthreads();
    uint2 before{through.x - mine.x, through.y - mine.y};
    for (uint32_t w = 0; w < threadIdx.x / 32; ++w) before.x += sums[w].x, before.y += sums[w].y;
    for (uint32_t bin = begin; bin < end; ++bin) {
        const uint32_t size = bins.sizes[bin];
        bins.sizes[bin] = before.x;
        if (a.cursors) a.cursors[bin] = before.x;
        bins.item_starts[bin] = before.y;
        before.x += size;
        before.y += items_of(a, bin, size);
    }
    if (threadIdx.x + 1 == scan_threads) {
        bins.sizes[bins.bins] = before.x;
        bins.item_starts[bins.bins] = before.y;
        bins.item_count[0] = before.y;
        bins.item_count[1] = 0;
    }
}

// The order of visits within a bin depends on atomics, and does not change any result.
__global__ void __launch_bounds__(threads) place_visits(SortArguments a) {
    const size_t at = size_t{blockIdx.x} * threads + threadIdx.x;
    const auto query = static_cast<uint32_t>(at / a.queries.probes);
    const auto rank = static_cast<uint32_t>(at % a.queries.probes);
    if (query >= a.queries.count || rank >= visits_of(a, query)) return;
    const uint32_t list = a.queries.probed[at];
    const uint32_t bin = bin_of(a, query, list);
    Visit visit{query, a.queries.terms[at], 0, 0};
    if (a.ranks) {
        if (a.ranks[at] != no_index) a.bins.visits[a.bins.sizes[bin] + a.ranks[at]] = visit;
        return;
    }
    const uint32_t count = a.store.lists[list].count;
    if (count == 0) return;
    for (uint32_t r = 0; r < rank; ++r)
        visit.place += a.store.lists[a.queries.probed[at - rank + r]].count;
    visit.place = min(visit.place, a.first.room);
    visit.limit = min(count, a.first.room - visit.place);
    a.bins.visits[atomicAdd(&a.cursors[bin], 1u)] = visit;
}

// One warp per bin.
__global__ void __launch_bounds__(threads) make_items(SortArguments a) {
    const Bins& bins = a.bins;
    const uint32_t bin = (blockIdx.x * threads + threadIdx.x) / 32;
    if (bin >= bins.bins) return;
    const uint32_t first = bins.item_starts[bin], count = bins.item_starts[bin + 1] - first;
    if (count == 0) return;
    const uint32_t list = bin % a.store.model.shape.lists;
    const uint32_t begin = bins.sizes[bin], end = bins.sizes[bin + 1];
    const uint32_t tiles = (a.store.lists[list].count + tile_entries - 1) / tile_entries;
    const uint32_t parts = (tiles + a.tiles_per_item - 1) / a.tiles_per_item;
    for (uint32_t i = lane_id(); i < count; i += 32) {
        const uint32_t visit = begin + i / parts * group_queries, part = i % parts;
        const auto tile_at = [&](uint32_t p) {
            return static_cast<uint32_t>(uint64_t{tiles} * p / parts);
        };
        bins.items[first + i] = {list, visit, min(group_queries, end - visit), tile_at(part),
                                 tile_at(part + 1) - tile_at(part)};
    }
}

unsigned blocks_for(const QueryView& queries) {
    return static_cast<unsigned>(
        divide_up(size_t{queries.count} * queries.probes, size_t{threads}));
}

void place_and_cut(const SortArguments& a, cudaStream_t stream) {
    launch("scan_bins", scan_bins, {1, scan_threads, 0, stream}, a);
    launch("place_visits", place_visits, {blocks_for(a.queries), threads, 0, stream}, a);
    launch("make_items", make_items, {divide_up(a.bins.bins, threads / 32), threads, 0, stream}, a);
}

}  // namespace

void sort_visits(const StoreView& store, const QueryView& queries, const uint32_t* ranks,
                 uint32_t tiles_per_item, const Bins& bins, cudaStream_t stream) {
    place_and_cut({store, queries, {}, ranks, nullptr, tiles_per_item, bins}, stream);
}

void sort_first_visits(const StoreView& store, const QueryView& queries, const FirstLists& first,
                       uint32_t* cursors, uint32_t tiles_per_item, const Bins& bins,
                       cudaStream_t stream) {
    const SortArguments arguments{store, queries, first, nullptr, cursors, tiles_per_item, bins};
    clear_async(bins.sizes, bins.bins + 1, stream);
    launch("count_visits", count_visits, {blocks_for(queries), threads, 0, stream}, arguments);
    place_and_cut(arguments, stream);
}

}  // namespace pgwarp::gpu
