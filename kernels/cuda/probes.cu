#include "kernels/cuda/probes.h"

#include "kernels/cuda/float_rows.cuh"
#include "kernels/cuda/launch.cuh"

#include <algorithm>

namespace pgwarp::gpu {

namespace {

struct ProbeArguments {
    StoreView store;
    QueryView queries;
    FirstLists first;
    uint32_t* host_probed;
    size_t host_stride;
};

// One warp: for the lists in their order, how many tiles come before each, and how many of them
// it takes to have a bound.
__device__ void count_entries(const ProbeArguments& a, uint32_t query, uint32_t probes) {
    const QueryView& queries = a.queries;
    const uint32_t* probed = queries.probed + size_t{query} * queries.probes;
    uint32_t* starts = queries.tile_starts
                           ? queries.tile_starts + size_t{query} * (queries.probes + 1)
                           : nullptr;
    const uint32_t wanted = candidates_for(queries.wanted[query].k);
    uint32_t tiles_before = 0, entries_before = 0, first = 0;
    for (uint32_t base = 0; base < probes; base += 32) {
        const uint32_t at = base + lane_id();
        const uint32_t count = at < probes ? a.store.lists[probed[at]].count : 0;
        uint32_t tiles = (count + tile_entries - 1) / tile_entries, entries = count;
#pragma unroll
        for (int distance = 1; distance < 32; distance *= 2) {
            const uint32_t more_tiles = __shfl_up_sync(whole_warp, tiles, distance);
            const uint32_t more_entries = __shfl_up_sync(whole_warp, entries, distance);
            if (lane_id() >= distance) tiles += more_tiles, entries += more_entries;
        }
        if (starts && at < probes) starts[at + 1] = tiles_before + tiles;
        // Lists are taken until there are enough entries: those before which there are not.
        const bool taken =
            at < probes && (entries_before + entries - count < 2 * wanted || at == 0);
        first += __popc(__ballot_sync(whole_warp, taken));
        tiles_before += __shfl_sync(whole_warp, tiles, 31);
        entries_before += __shfl_sync(whole_warp, entries, 31);
    }
    if (lane_id() != 0) return;
    if (starts) starts[0] = 0;
    if (a.first.counts) a.first.counts[query] = first;
}

// A block a query. More probes than a block selects at once come in rounds.
template <class Shape, int sort_items>
__global__ void __launch_bounds__(Shape::threads, Shape::blocks) choose(ProbeArguments a) {
    constexpr uint32_t round_probes = Shape::threads * sort_items;
    auto& storage = *shared_memory<typename BlockSelect<Shape>::Storage>();
    const QueryView& queries = a.queries;
    const uint32_t query = blockIdx.x;
    const uint32_t lists = a.store.model.shape.lists;
    const uint32_t probes = min(queries.wanted[query].probes, lists);
    const float norm = queries.norms ? queries.norms[query] : 0.0f;
    __shared__ uint64_t last;
    uint64_t floor = 0;
    for (uint32_t begin = 0; begin < probes; begin += round_probes) {
        const uint32_t wanted = min(round_probes, probes - begin);
        const FloatRow row({queries.coarse + query * queries.coarse_stride,
                            queries.coarse_lacks_norms ? a.store.centroid_norms : nullptr, 1.0f, 0,
                            floor},
                           0, static_cast<int>(lists));
        BlockSelect<Shape> select(storage, wanted);
        select_row(select, row);
        select.template sort<sort_items>([&](uint32_t i, uint64_t key) {
            const uint32_t at = begin + i;
            // A row of NaN has no order: lists that nothing is known of come as they are.
            const uint32_t list = key == no_key ? at : key_index(key);
            queries.probed[size_t{query} * queries.probes + at] = list;
            queries.terms[size_t{query} * queries.probes + at] =
                key == no_key ? bits_float(infinity_bits) : key_value(key) + norm;
            if (a.host_probed) a.host_probed[query * a.host_stride + at] = list;
            if (i + 1 == wanted) last = key;
        });
        __syncthreads();
        floor = last;
        __syncthreads();
    }
    if (threadIdx.x < 32) count_entries(a, query, probes);
}

template <class Shape, int sort_items>
void launch_choose(const ProbeArguments& arguments, cudaStream_t stream) {
    launch("choose_probes", choose<Shape, sort_items>,
           {arguments.queries.count, Shape::threads, sizeof(typename BlockSelect<Shape>::Storage),
            stream},
           arguments);
}

}  // namespace

void choose_probes(const StoreView& store, const QueryView& queries, const FirstLists* first,
                   uint32_t* host_probed, size_t host_stride, cudaStream_t stream) {
    const ProbeArguments arguments{store, queries, first ? *first : FirstLists{}, host_probed,
                                   host_stride};
    const uint32_t probes = std::min(queries.probes, store.model.shape.lists);
    auto* choose_all = &launch_choose<LargeSelect, 4>;
    if (probes <= 128)
        choose_all = &launch_choose<SmallSelect, 1>;
    else if (store.model.shape.lists <= SmallSelect::capacity)
        choose_all = &launch_choose<SmallSelect, 8>;
    else if (probes <= 1024)
        choose_all = &launch_choose<MediumSelect, 4>;
    choose_all(arguments, stream);
}

}  // namespace pgwarp::gpu
