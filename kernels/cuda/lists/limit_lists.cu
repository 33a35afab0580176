#include "kernels/cuda/lists/limit_lists.h"

#include "kernels/cuda/base/launch.cuh"
#include "kernels/cuda/lists/query_table.cuh"
#include "kernels/cuda/lists/store_of.cuh"
#include "kernels/cuda/lists/tile_distances.cuh"
#include "kernels/list_effort.h"

#include <algorithm>

namespace pgwarp::gpu {

namespace {

struct LimitArguments {
    QueryScan scan;
    LimitedQueries queries;
    uint32_t resident_slices;  // of the table in shared memory: all, or none
};

// A warp's run of tiles among a query's first ones, 32 at a time: lane i keeps where tile i is.
template <class Shape, int width>
class FirstRun {
  public:
    __device__ FirstRun(const LimitArguments& a, const ListTiles& tiles, uint32_t query,
                        uint32_t tile, uint32_t end, const float* table)
        : tiles_(tiles),
          tile_(tile),
          end_(end),
          distances_(a.scan, query, a.resident_slices > 0 ? table : nullptr) {}

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
    uint32_t rank_ = 0;  // not larger than that of tile_
    uint32_t count_ = 0, at_ = 0;
    const CodeDistances<width> distances_;
    TileRef here_{};
    uint32_t first_ = 0;  // number of the tile's first entry in the store
};

// By the distances of the k-th nearest entry of the query's first lists, and of the wider_k-th;
// infinity: they have fewer than k.
template <class Shape, int width>
__device__ float find_radius(const LimitArguments& a, uint32_t query, const ListTiles& all,
                             uint32_t lists, typename BlockSelect<Shape>::Storage& storage,
                             float* table) {
    if (a.resident_slices > 0)
        load_query_table<Shape::threads>(a.scan, a.resident_slices, query, 0, table);
    __syncthreads();
    const uint32_t tiles = all.start(lists), warp = threadIdx.x / 32;
    const uint32_t k = a.scan.queries.wanted[query].radius_k;
    const uint32_t rows = max(k, a.scan.queries.wanted[query].wider_k);
    BlockSelect<Shape> select(storage, rows);
    FirstRun<Shape, width> run(a, all, query, part_begin(tiles, warp, Shape::warps),
                               part_begin(tiles, warp + 1, Shape::warps), table);
    while (true) {
        while (!run.done() && select.room() >= run.room) run.step(select);
        if (!__syncthreads_or(!run.done())) break;
        select.cut();
    }
    select.cut();
    const float infinity = bits_float(infinity_bits);
    const uint32_t kept = select.kept_count();
    if (kept < k) return infinity;
    if (rows == k) return select.bound();
    // The only key with k - 1 others below.
    __shared__ float kth;
    for (uint32_t i = threadIdx.x; i < kept; i += Shape::threads) {
        const uint64_t key = select.kept()[i];
        uint32_t below = 0;
        for (uint32_t j = 0; j < kept; ++j) below += select.kept()[j] < key;
        if (below == k - 1) kth = key_value(key);
    }
    __syncthreads();
    return wider_radius(kth, kept >= rows ? select.bound() : infinity);
}

// One block per query.
template <class Shape, int width, bool mixed>
__global__ void __launch_bounds__(Shape::threads) limit_query(LimitArguments a) {
    using Storage = typename BlockSelect<Shape>::Storage;
    auto* storage = shared_memory<Storage>();
    auto* table = reinterpret_cast<float*>(storage + 1);
    __shared__ uint32_t first_lists, taken;
    wait_for_kernels_before();
    const uint32_t query = blockIdx.x;
    const QueryView& queries = a.scan.queries;
    const ListQuery wanted = queries.wanted[query];
    if (!(wanted.threshold > 0)) return;  // the whole block
    const StoreOf<mixed> store = store_of<mixed>(a.scan, query);
    const uint32_t probes = min(wanted.probes, store.model.shape.lists);
    const uint32_t* starts = queries.entry_starts + size_t{query} * (queries.probes + 1);
    const float* terms = queries.terms + size_t{query} * queries.probes;
    if (threadIdx.x == 0) {
        first_lists = max(min(wanted.first_lists, probes), 1u);
        taken = probes;
    }
    __syncthreads();
    for (uint32_t rank = threadIdx.x; rank < probes; rank += Shape::threads)
        if (starts[rank] < wanted.first_entries) atomicMax(&first_lists, rank + 1);
    __syncthreads();
    const uint32_t lists = first_lists;
    const float radius = find_radius<Shape, width>(
        a, query, ListTiles(store, a.scan, query, probes), lists, *storage, table);
    if (radius == bits_float(infinity_bits)) return;
    // Scores grow with the rank.
    for (uint32_t rank = lists + threadIdx.x; rank < probes; rank += Shape::threads)
        if (list_score(terms[rank], terms[0], radius, static_cast<float>(starts[rank])) >
            wanted.threshold)
            atomicMin(&taken, rank);
    __syncthreads();
    if (threadIdx.x != 0) return;
    a.queries.wanted[query].probes = taken;
    a.queries.taken[query] = taken;
}

template <class Shape, int width, bool mixed>
void launch_limit(const LimitArguments& arguments, const Context& context, Turn turn) {
    constexpr size_t fixed = sizeof(typename BlockSelect<Shape>::Storage);
    const QueryScan& scan = arguments.scan;
    const size_t table_bytes = float_table_size(scan.store.layout) * sizeof(float);
    const bool fits = table_bytes <= context.block_shared_bytes - fixed;
    LimitArguments with_table = arguments;
    with_table.resident_slices = fits ? scan.store.layout.slices : 0;
    launch("limit_lists", limit_query<Shape, width, mixed>,
           {scan.queries.count, Shape::threads, fixed + (fits ? table_bytes : 0), turn},
           with_table);
}

template <class Shape, bool mixed = false>
void launch_width(const LimitArguments& arguments, const Context& context, Turn turn) {
    if (arguments.scan.store.layout.width == 32)
        launch_limit<Shape, 32, mixed>(arguments, context, turn);
    else
        launch_limit<Shape, 16, mixed>(arguments, context, turn);
}

}  // namespace

void limit_lists(const QueryScan& scan, const LimitedQueries& queries, const Context& context,
                 Turn turn) {
    auto* limit_all = &launch_width<LargeSelect>;
    static_assert(fast_list_k <= SmallSelect::kept);
    if (scan.queries.stores)
        limit_all = &launch_width<SmallSelect, true>;
    else if (scan.queries.k <= SmallSelect::kept)
        limit_all = &launch_width<SmallSelect>;
    else if (scan.queries.k <= MediumSelect::kept)
        limit_all = &launch_width<MediumSelect>;
    limit_all({scan, queries, 0}, context, turn);
}

}  // namespace pgwarp::gpu
