#include "kernels/cuda/select/float_rows.cuh"
#include "kernels/cuda/base/launch.cuh"
#include "kernels/cuda/lists/scan_lists.h"
#include "kernels/cuda/select/short_row.cuh"

namespace pgwarp::gpu {

namespace {

struct BoundArguments {
    StoreView store;
    QueryView queries;
    FirstLists first;
    const float* distances;
    float* bounds;

    __device__ uint32_t length(uint32_t query) const {
        const uint32_t* probed = queries.probed + size_t{query} * queries.probes;
        uint32_t entries = 0;
        for (uint32_t i = 0; i < first.counts[query] && entries < first.room; ++i)
            entries += store.lists[probed[i]].count;
        return min(entries, first.room);
    }
    __device__ const float* row(uint32_t query) const {
        return distances + size_t{query} * first.room;
    }
};

template <class Shape>
__global__ void __launch_bounds__(Shape::threads, Shape::blocks) bounds_of(BoundArguments a) {
    auto& storage = *shared_memory<typename BlockSelect<Shape>::Storage>();
    const uint32_t query = blockIdx.x;
    BlockSelect<Shape> select(storage, list_candidates(a.queries.wanted[query].k));
    const FloatRow row({a.row(query), nullptr, 1.0f, 0, 0}, 0, static_cast<int>(a.length(query)));
    select_row(select, row);
    if (threadIdx.x == 0) a.bounds[query] = select.bound();
}

template <class Shape>
void launch_bounds(const BoundArguments& arguments, cudaStream_t stream) {
    launch("bounds_of", bounds_of<Shape>,
           {arguments.queries.count, Shape::threads, sizeof(typename BlockSelect<Shape>::Storage),
            stream},
           arguments);
}

// For few candidates and short rows of distances: one warp per query.
constexpr unsigned short_warps = 4;
using BoundRow = ShortRow<32>;

__global__ void __launch_bounds__(short_warps * 32, 5) short_bounds_of(BoundArguments a) {
    __shared__ uint64_t room[short_warps][BoundRow::kept];
    const uint32_t query = blockIdx.x * short_warps + threadIdx.x / 32;
    if (query >= a.queries.count) return;
    const float* distances = a.row(query);
    const uint32_t length = a.length(query);
    const BoundRow row([&](uint32_t i, float(&four)[4]) { load_four(distances, i, length, four); });
    const uint32_t candidates = list_candidates(a.queries.wanted[query].k);
    row.select(candidates, room[threadIdx.x / 32], [&](uint32_t i, uint64_t key) {
        if (i + 1 == candidates)
            a.bounds[query] = key == no_key ? bits_float(infinity_bits) : key_value(key);
    });
}

void launch_short_bounds(const BoundArguments& arguments, cudaStream_t stream) {
    launch("short_bounds_of", short_bounds_of,
           {divide_up(arguments.queries.count, short_warps), short_warps * 32, 0, stream},
           arguments);
}

}  // namespace

void find_bounds(const StoreView& store, const QueryView& queries, const FirstLists& first,
                 const float* distances, float* bounds, cudaStream_t stream) {
    const uint32_t candidates = list_candidates(queries.k);
    auto* find_all = &launch_bounds<LargeSelect>;
    if (candidates <= BoundRow::kept && first.room <= BoundRow::most)
        find_all = &launch_short_bounds;
    else if (candidates <= SmallSelect::kept)
        find_all = &launch_bounds<SmallSelect>;
    else if (candidates <= MediumSelect::kept)
        find_all = &launch_bounds<MediumSelect>;
    find_all({store, queries, first, distances, bounds}, stream);
}

}  // namespace pgwarp::gpu
