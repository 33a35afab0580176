#include "kernels/cuda/lists/probes.h"

#include "kernels/cuda/select/float_rows.cuh"
#include "kernels/cuda/base/launch.cuh"
#include "kernels/cuda/lists/store_of.cuh"
#include "kernels/cuda/select/short_row.cuh"

#include <algorithm>

namespace pgwarp::gpu {

namespace {

struct ProbeArguments {
    StoreView store;
    QueryView queries;
    ProbeChoice choice;
};

// Called by one warp. Writes the prefix sums of tiles and entries over the query's lists, and the
// number of lists that it takes to find a bound.
__device__ void count_entries(const ProbeArguments& a, const StoreView& store, uint32_t query,
                              uint32_t probes) {
    const QueryView& queries = a.queries;
    const uint32_t* probed = queries.probed + size_t{query} * queries.probes;
    uint32_t* starts =
        queries.tile_starts ? queries.tile_starts + size_t{query} * (queries.probes + 1) : nullptr;
    uint32_t* entry_starts = queries.entry_starts
                                 ? queries.entry_starts + size_t{query} * (queries.probes + 1)
                                 : nullptr;
    const uint32_t wanted = list_candidates(queries.wanted[query].k);
    uint32_t tiles_before = 0, entries_before = 0, first = 0;
    constexpr uint32_t at_once = 4;  // lists of a lane: their loads are in flight together
    for (uint32_t base = 0; base < probes; base += 32 * at_once) {
        uint32_t counts[at_once];
#pragma unroll
        for (uint32_t i = 0; i < at_once; ++i) {
            const uint32_t at = base + 32 * i + lane_id();
            counts[i] = at < probes ? store.lists[probed[at]].count : 0;
        }
#pragma unroll
        for (uint32_t i = 0; i < at_once; ++i) {
            if (base + 32 * i >= probes) break;
            const uint32_t at = base + 32 * i + lane_id(), count = counts[i];
            uint32_t tiles = (count + tile_entries - 1) / tile_entries, entries = count;
#pragma unroll
            for (int distance = 1; distance < 32; distance *= 2) {
                const uint32_t more_tiles = __shfl_up_sync(whole_warp, tiles, distance);
                const uint32_t more_entries = __shfl_up_sync(whole_warp, entries, distance);
                if (lane_id() >= distance) tiles += more_tiles, entries += more_entries;
            }
            if (starts && at < probes) starts[at + 1] = tiles_before + tiles;
            if (entry_starts && at < probes) entry_starts[at + 1] = entries_before + entries;
            // A list is taken if the lists before it have fewer than 2 * wanted entries.
            const bool taken =
                at < probes && (entries_before + entries - count < 2 * wanted || at == 0);
            first += __popc(__ballot_sync(whole_warp, taken));
            tiles_before += __shfl_sync(whole_warp, tiles, 31);
            entries_before += __shfl_sync(whole_warp, entries, 31);
        }
    }
    if (lane_id() != 0) return;
    if (starts) starts[0] = 0;
    if (entry_starts) entry_starts[0] = 0;
    if (a.choice.first.counts) a.choice.first.counts[query] = first;
}

// Writes the query's list of rank `rank`, and its term.
__device__ __forceinline__ void put_probe(const ProbeArguments& a, uint32_t query, uint32_t rank,
                                          uint64_t key, float norm) {
    const QueryView& queries = a.queries;
    // Coarse distances that are all NaN have no order: take the lists by number.
    const uint32_t list = key == no_key ? rank : key_index(key);
    const size_t at = size_t{query} * queries.probes + rank;
    queries.probed[at] = list;
    queries.terms[at] = key == no_key ? bits_float(infinity_bits) : key_value(key) + norm;
    const VisitCounts& visits = a.choice.visits;
    if (!visits.sizes) return;
    const uint32_t bin = query / visits.part_queries * a.store.model.shape.lists + list;
    visits.ranks[at] = a.store.lists[list].count > 0 ? atomicAdd(&visits.sizes[bin], 1u) : no_index;
}

// Called by `threads` threads once the query's lists are written. Copies them to host memory in
// whole lines: single words would each cross the bus alone.
__device__ void put_on_host(const ProbeArguments& a, uint32_t query, uint32_t probes,
                            uint32_t thread, uint32_t threads) {
    if (!a.choice.host_probed) return;
    const size_t first = size_t{query} * a.queries.probes;
    for (uint32_t i = thread; i < probes; i += threads)
        a.choice.host_probed[first + i] = a.queries.probed[first + i];
}

// For few lists and few probes: one warp per query. Only for many queries, as a single warp takes
// longer than a block.
constexpr unsigned short_warps = 4;
constexpr uint32_t least_by_warp = 512;

template <int items>
__global__ void __launch_bounds__(short_warps * 32, 5) choose_short(ProbeArguments a) {
    __shared__ uint64_t room[short_warps][ShortRow<items>::kept];
    wait_for_kernels_before();
    const QueryView& queries = a.queries;
    const uint32_t query = blockIdx.x * short_warps + threadIdx.x / 32;
    if (query >= queries.count) return;
    const uint32_t lists = a.store.model.shape.lists;
    const uint32_t probes = min(queries.wanted[query].probes, lists);
    const float norm = queries.norms ? queries.norms[query] : 0.0f;
    const float* coarse = queries.coarse + query * queries.coarse_stride;
    const float* norms = queries.coarse_lacks_norms ? a.store.centroid_norms : nullptr;
    const ShortRow<items> row([&](uint32_t list, float(&four)[4]) {
        load_four(coarse, list, lists, four);
        if (!norms) return;
#pragma unroll
        for (int i = 0; i < 4; ++i)
            if (list + i < lists) four[i] += __ldg(norms + list + i);
    });
    row.select(probes, room[threadIdx.x / 32],
               [&](uint32_t i, uint64_t key) { put_probe(a, query, i, key, norm); });
    __syncwarp();
    put_on_host(a, query, probes, lane_id(), 32);
    count_entries(a, a.store, query, probes);
}

template <int items>
void launch_short(const ProbeArguments& arguments, Turn turn) {
    launch("choose_short", choose_short<items>,
           {divide_up(arguments.queries.count, short_warps), short_warps * 32, 0, turn}, arguments);
}

// From this many lists on, reading them takes longer than sorting what was chosen, and more threads
// read faster, as long as each query has a multiprocessor.
constexpr uint32_t least_wide = 4096, most_wide = 128;

// One block per query. Selects round_probes probes per round; the floor excludes earlier rounds.
template <class Shape, int sort_items, bool mixed>
__global__ void __launch_bounds__(Shape::threads, Shape::blocks) choose(ProbeArguments a) {
    constexpr uint32_t round_probes = Shape::threads * sort_items;
    wait_for_kernels_before();
    auto& storage = *shared_memory<typename BlockSelect<Shape>::Storage>();
    const QueryView& queries = a.queries;
    const uint32_t query = blockIdx.x;
    const StoreOf<mixed> store = store_of<mixed>(a, query);
    const uint32_t lists = store.model.shape.lists;
    const uint32_t probes = min(queries.wanted[query].probes, lists);
    const float norm = queries.norms ? queries.norms[query] : 0.0f;
    __shared__ uint64_t last;
    uint64_t floor = 0;
    for (uint32_t begin = 0; begin < probes; begin += round_probes) {
        const uint32_t wanted = min(round_probes, probes - begin);
        const FloatRow row(
            {queries.coarse + query * queries.coarse_stride,
             queries.coarse_lacks_norms ? store.centroid_norms : nullptr, 1.0f, 0, floor},
            0, static_cast<int>(lists));
        BlockSelect<Shape> select(storage, wanted);
        select_row(select, row);
        select.template sort<sort_items>([&](uint32_t i, uint64_t key) {
            put_probe(a, query, begin + i, key, norm);
            if (i + 1 == wanted) last = key;
        });
        __syncthreads();
        floor = last;
        __syncthreads();
    }
    put_on_host(a, query, probes, threadIdx.x, Shape::threads);
    if (threadIdx.x < 32) count_entries(a, store, query, probes);
}

template <class Shape, int sort_items, bool mixed = false>
void launch_choose(const ProbeArguments& arguments, Turn turn) {
    launch("choose_probes", choose<Shape, sort_items, mixed>,
           {arguments.queries.count, Shape::threads, sizeof(typename BlockSelect<Shape>::Storage),
            turn},
           arguments);
}

}  // namespace

void choose_probes(const StoreView& store, const QueryView& queries, const ProbeChoice& choice,
                   Turn turn) {
    const ProbeArguments arguments{store, queries, choice};
    const uint32_t probes = std::min(queries.probes, store.model.shape.lists);
    auto* choose_all = &launch_choose<LargeSelect, 4>;
    const uint32_t lists = store.model.shape.lists;
    static_assert(most_mixed_probes <= 1024);
    if (queries.stores)
        choose_all = probes <= 128 ? &launch_choose<SmallSelect, 1, true>
                                   : &launch_choose<MediumSelect, 4, true>;
    else if (queries.count <= most_wide && lists >= least_wide && probes <= WideSelect::threads)
        choose_all = &launch_choose<WideSelect, 1>;
    else if (queries.count < least_by_warp && probes <= 128)
        choose_all = &launch_choose<SmallSelect, 1>;
    else if (probes <= ShortRow<32>::kept && lists <= ShortRow<32>::most)
        choose_all = lists <= ShortRow<8>::most ? &launch_short<8> : &launch_short<32>;
    else if (probes <= 128)
        choose_all = &launch_choose<SmallSelect, 1>;
    else if (lists <= SmallSelect::capacity)
        choose_all = &launch_choose<SmallSelect, 8>;
    else if (probes <= 1024)
        choose_all = &launch_choose<MediumSelect, 4>;
    choose_all(arguments, turn);
}

}  // namespace pgwarp::gpu
