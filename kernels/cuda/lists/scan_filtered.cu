#include "kernels/cuda/lists/scan_filtered.h"

#include "kernels/cuda/base/launch.cuh"
#include "kernels/cuda/lists/filtered_run.cuh"
#include "kernels/cuda/lists/query_table.cuh"

namespace pgwarp::gpu {

namespace {

struct FilteredArguments {
    QueryScan scan;
    FilterView filter;
    uint32_t resident_slices;  // of the table in shared memory: all, or none
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
__device__ void filtered_part(const FilteredArguments& a, uint32_t query, uint32_t split,
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
    FilteredRun<Shape, width> run(a.scan, a.filter, all, query, wanted.first_probe,
                                  first + part_begin(count, warp, Shape::warps),
                                  first + part_begin(count, warp + 1, Shape::warps),
                                  a.resident_slices > 0 ? table : nullptr);
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
        FilteredCounts& counts = a.filter.counts[query];
        atomicAdd(&counts.searched.passed, passed);
        atomicAdd(&counts.beyond, run.beyond());
    }
}

template <class Shape, int width>
__global__ void __launch_bounds__(Shape::threads, 768 / Shape::threads)
    scan_filtered_queries(FilteredArguments a) {
    using Storage = typename BlockSelect<Shape>::Storage;
    auto* storage = shared_memory<Storage>();
    auto* table = reinterpret_cast<float*>(storage + 1);
    const uint32_t tasks = a.scan.queries.count * a.scan.splits;
    for (uint32_t task = blockIdx.x; task < tasks; task += gridDim.x) {
        filtered_part<Shape, width>(a, task / a.scan.splits, task % a.scan.splits, *storage, table);
        __syncthreads();
    }
}

template <class Shape, int width>
void launch_filtered(const FilteredArguments& arguments, const Context& context,
                     cudaStream_t stream) {
    constexpr size_t fixed = sizeof(typename BlockSelect<Shape>::Storage);
    static_assert(fixed % 16 == 0);
    const QueryScan& scan = arguments.scan;
    const size_t table_bytes = size_t{scan.store.layout.slices} * codewords * width * sizeof(float);
    // A table that does not fit is read from memory: few entries pass.
    const bool fits = table_bytes <= context.block_shared_bytes - fixed;
    FilteredArguments with_table = arguments;
    with_table.resident_slices = fits ? scan.store.layout.slices : 0;
    launch("scan_filtered", scan_filtered_queries<Shape, width>,
           {scan.queries.count * scan.splits, Shape::threads, fixed + (fits ? table_bytes : 0),
            stream},
           with_table);
}

template <class Shape>
void launch_width(const FilteredArguments& arguments, const Context& context, cudaStream_t stream) {
    if (arguments.scan.store.layout.width == 32)
        launch_filtered<Shape, 32>(arguments, context, stream);
    else
        launch_filtered<Shape, 16>(arguments, context, stream);
}

}  // namespace

void scan_filtered(const QueryScan& scan, const FilterView& filter, const Context& context,
                   cudaStream_t stream) {
    const uint32_t candidates = list_candidates(scan.queries.k);
    auto* scan_all = &launch_width<LargeSelect>;
    if (candidates <= SmallSelect::kept)
        scan_all = &launch_width<SmallSelect>;
    else if (candidates <= MediumSelect::kept)
        scan_all = &launch_width<MediumSelect>;
    scan_all({scan, filter, 0}, context, stream);
}

}  // namespace pgwarp::gpu
