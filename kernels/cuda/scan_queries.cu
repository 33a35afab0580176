#include "kernels/cuda/scan_queries.h"

#include "kernels/cuda/block_select.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/look_up.cuh"
#include "kernels/cuda/stream.h"
#include "kernels/cuda/tables.cuh"
#include "kernels/cuda/tables.h"

#include <algorithm>

namespace pgwarp::gpu {

namespace {

struct ScanArguments {
    QueryScan scan;
    uint32_t resident_slices;  // of the table, in shared memory at a time
};

// Slices of a query's table from `slice` on, as many as are resident.
template <class Shape>
__device__ void load_table(const ScanArguments& a, uint32_t query, uint32_t slice, float* table) {
    const StoreView& store = a.scan.store;
    const CodeLayout& layout = store.layout;
    const uint32_t slices = min(a.resident_slices, layout.slices - slice);
    const uint32_t slice_floats = codewords * layout.width;
    if (a.scan.tables) {
        const size_t first = (size_t{query} * layout.slices + slice) * slice_floats;
        const auto* from = reinterpret_cast<const float4*>(a.scan.tables + first);
#pragma unroll 8
        for (uint32_t i = threadIdx.x; i < slices * slice_floats / 4; i += Shape::threads)
            reinterpret_cast<float4*>(table)[i] = __ldg(from + i);
        return;
    }
    const float* vector = a.scan.queries.vectors + size_t{query} * store.model.shape.dims;
    for (uint32_t i = threadIdx.x; i < slices * table_units(layout.width); i += Shape::threads) {
        const TableUnit unit(slice * table_units(layout.width) + i, layout.width);
        float entry[1][4][2];
        table_entries<1>(store, vector, unit.piece, unit.code, entry);
        const uint32_t row = (unit.piece / layout.width - slice) * codewords + unit.code;
        for (int c = 0; c < 4; ++c)
            *reinterpret_cast<float2*>(table + (row + c) * layout.width +
                                       unit.piece % layout.width) = {entry[0][c][0],
                                                                     entry[0][c][1]};
    }
}

// Goes through the tiles of a query's lists, one after the other.
template <int width>
class TileWalk {
  public:
    // A tile's codes and offsets, on their way.
    struct Tile {
        CodeWords<width> codes;
        float base;      // term and offset; NaN behind the last entry, and where there is no tile
        uint32_t entry;  // its number in the store
    };

    __device__ TileWalk(const ScanArguments& a, uint32_t query, uint32_t probes)
        : store_(a.scan.store),
          starts_(a.scan.queries.tile_starts + size_t{query} * (a.scan.queries.probes + 1)),
          probed_(a.scan.queries.probed + size_t{query} * a.scan.queries.probes),
          terms_(a.scan.queries.terms + size_t{query} * a.scan.queries.probes),
          probes_(probes) {}

    __device__ uint32_t tiles() const { return starts_[probes_]; }

    // To the list that has tile `tile`, which is one of the query's.
    __device__ void seek(uint32_t tile) {
        uint32_t low = 0, high = probes_;  // the first list that ends behind the tile
        while (low < high) {
            const uint32_t middle = (low + high) / 2;
            if (starts_[middle + 1] > tile)
                high = middle;
            else
                low = middle + 1;
        }
        enter(low);
    }

    // Slice 0 of a tile at or behind the last one.
    __device__ __forceinline__ Tile load(uint32_t tile) {
        while (tile >= end_) enter(rank_ + 1);
        const uint32_t in_list = tile - begin_;
        const uint32_t position = in_list * tile_entries + lane_id();
        Tile loaded;
        loaded.codes.load(words(in_list, 0));
        loaded.base = term_ + __ldg(list_.offsets + position);
        loaded.entry = list_.first + position;
        return loaded;
    }
    // Another slice of a tile of the current list.
    __device__ void load_slice(uint32_t tile, uint32_t slice, CodeWords<width>& codes) const {
        codes.load(words(tile - begin_, slice));
    }

  private:
    __device__ void enter(uint32_t rank) {
        rank_ = rank;
        begin_ = starts_[rank];
        end_ = starts_[rank + 1];
        list_ = store_.lists[probed_[rank]];
        term_ = terms_[rank];
    }
    __device__ const uint4* words(uint32_t in_list, uint32_t slice) const {
        return reinterpret_cast<const uint4*>(list_.tiles) +
               (size_t{in_list} * store_.layout.slices + slice) * (tile_entries * width / 16);
    }

    const StoreView& store_;
    const uint32_t* starts_;
    const uint32_t* probed_;
    const float* terms_;
    uint32_t probes_;
    uint32_t rank_ = 0, begin_ = 0, end_ = 0;
    DeviceList list_{};
    float term_ = 0;
};

// A block's share of a query's tiles, each warp a run of its own: the next tile is on its way
// while one is summed up.
template <class Shape, int width>
__device__ void scan_part(const ScanArguments& a, uint32_t query, uint32_t split,
                          typename BlockSelect<Shape>::Storage& storage, float* table) {
    using Walk = TileWalk<width>;
    const StoreView& store = a.scan.store;
    const uint32_t slices = store.layout.slices;
    const ListQuery wanted = a.scan.queries.wanted[query];
    const uint32_t candidates = candidates_for(a.scan.queries.k);
    Walk walk(a, query, min(wanted.probes, store.model.shape.lists));
    const auto share = [](uint32_t all, uint32_t i, uint32_t parts) {
        return static_cast<uint32_t>(static_cast<uint64_t>(all) * i / parts);
    };
    const uint32_t tiles = walk.tiles();
    const uint32_t first = share(tiles, split, a.scan.splits);
    const uint32_t count = share(tiles, split + 1, a.scan.splits) - first;
    const uint32_t warp = threadIdx.x / 32;
    uint32_t tile = first + share(count, warp, Shape::warps);
    const uint32_t end = first + share(count, warp + 1, Shape::warps);

    BlockSelect<Shape> select(storage, candidates_for(wanted.k));
    const LaneAddresses<width> lane(shared_address(table));
    typename Walk::Tile next{{}, __builtin_nanf(""), 0};
    if (tile < end) {
        walk.seek(tile);
        next = walk.load(tile);
    }
    if (count > 0) load_table<Shape>(a, query, 0, table);
    __syncthreads();
    const uint32_t steps = (count + Shape::warps - 1) / Shape::warps;
    for (uint32_t step = 0; step < steps; ++step, ++tile) {
        typename Walk::Tile here = next;
        const bool real = tile < end;
        float sum = 0;
        if (slices == 1) {
            next.base = __builtin_nanf("");
            if (tile + 1 < end) next = walk.load(tile + 1);
            if (real) sum = add_one(here.codes, lane, 0, 0.0f);
        } else {
            for (uint32_t slice = 0; slice < slices; ++slice) {
                if (slices > a.resident_slices && slice % a.resident_slices == 0) {
                    __syncthreads();
                    load_table<Shape>(a, query, slice, table);
                    __syncthreads();
                }
                if (!real) continue;
                if (slice > 0) walk.load_slice(tile, slice, here.codes);
                const uint32_t at = slice % a.resident_slices * (codewords * width * sizeof(float));
                sum = add_one(here.codes, lane, at, sum);
            }
            next.base = __builtin_nanf("");
            if (tile + 1 < end) next = walk.load(tile + 1);
        }
        const float distance = here.base + sum;
        select.collect(real && distance <= select.bound(), make_key(distance, here.entry));
        if (__syncthreads_or(select.room() < 32)) select.cut();
    }
    select.cut();
    const CandidateView& out = a.scan.candidates;
    uint64_t* keys = out.keys + size_t{query} * out.room + split * candidates;
    for (uint32_t i = threadIdx.x; i < candidates; i += Shape::threads)
        keys[i] = i < select.kept_count() ? select.kept()[i] : no_key;
    if (split == 0 && threadIdx.x == 0) out.counts[query] = a.scan.splits * candidates;
}

template <class Shape, int width>
__global__ void __launch_bounds__(Shape::threads) scan_by_query(ScanArguments a) {
    using Storage = typename BlockSelect<Shape>::Storage;
    auto* storage = shared_memory<Storage>();
    auto* table = reinterpret_cast<float*>(storage + 1);
    const uint32_t queries = a.scan.only ? *a.scan.only_count : a.scan.queries.count;
    for (uint32_t task = blockIdx.x; task < queries * a.scan.splits; task += gridDim.x) {
        const uint32_t query = task / a.scan.splits;
        scan_part<Shape, width>(a, a.scan.only ? a.scan.only[query] : query, task % a.scan.splits,
                                *storage, table);
        __syncthreads();
    }
}

template <class Shape, int width>
void launch_scan(const QueryScan& scan, const Context& context, cudaStream_t stream) {
    constexpr size_t fixed = sizeof(typename BlockSelect<Shape>::Storage);
    static_assert(fixed % 16 == 0);
    const size_t slice_bytes = codewords * width * sizeof(float);
    const size_t room = context.block_shared_bytes - fixed;
    const auto resident =
        static_cast<uint32_t>(std::clamp<size_t>(room / slice_bytes, 1, scan.store.layout.slices));
    const uint32_t blocks = scan.only ? 4 * context.processors : scan.queries.count * scan.splits;
    launch("scan_by_query", scan_by_query<Shape, width>,
           {blocks, Shape::threads, fixed + resident * slice_bytes, stream},
           ScanArguments{scan, resident});
}

template <class Shape>
void launch_width(const QueryScan& scan, const Context& context, cudaStream_t stream) {
    if (scan.store.layout.width == 32)
        launch_scan<Shape, 32>(scan, context, stream);
    else
        launch_scan<Shape, 16>(scan, context, stream);
}

__global__ void find_overflows(CandidateView candidates, uint32_t queries, uint32_t* overflowed,
                               uint32_t* count) {
    const uint32_t query = blockIdx.x * blockDim.x + threadIdx.x;
    if (query < queries && candidates.counts[query] > candidates.room)
        overflowed[atomicAdd(count, 1u)] = query;
}

}  // namespace

void scan_queries(const QueryScan& scan, const Context& context, cudaStream_t stream) {
    const uint32_t candidates = candidates_for(scan.queries.k);
    auto* scan_all = &launch_width<LargeSelect>;
    if (candidates <= SmallSelect::kept)
        scan_all = &launch_width<SmallSelect>;
    else if (candidates <= MediumSelect::kept)
        scan_all = &launch_width<MediumSelect>;
    scan_all(scan, context, stream);
}

void list_overflows(const CandidateView& candidates, uint32_t queries, uint32_t* overflowed,
                    uint32_t* count, cudaStream_t stream) {
    clear_async(count, 1, stream);
    launch("find_overflows", find_overflows, {divide_up(queries, 256u), 256, 0, stream}, candidates,
           queries, overflowed, count);
}

}  // namespace pgwarp::gpu
