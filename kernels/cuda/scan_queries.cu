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
            *reinterpret_cast<float2*>(
                table + (row + c) * layout.width + unit.piece % layout.width) = {
                entry[0][c][0], entry[0][c][1]};
    }
}

// A tile of one of the query's lists.
struct Tile {
    const uint8_t* codes;  // null: none
    float base;            // term and offset; NaN behind the last entry
    uint32_t entry;        // its number in the store
};

// Finds tile after tile, each behind the one before.
class TileFinder {
  public:
    __device__ TileFinder(const ScanArguments& a, uint32_t query, uint32_t probes)
        : store_(a.scan.store),
          starts_(a.scan.queries.tile_starts + size_t{query} * (a.scan.queries.probes + 1)),
          probed_(a.scan.queries.probed + size_t{query} * a.scan.queries.probes),
          terms_(a.scan.queries.terms + size_t{query} * a.scan.queries.probes),
          probes_(probes) {}

    __device__ uint32_t tiles() const { return starts_[probes_]; }

    // To the list that has tile `tile`.
    __device__ void seek(uint32_t tile) {
        uint32_t low = 0, high = probes_;  // the first list that ends behind the tile
        while (low < high) {
            const uint32_t middle = (low + high) / 2;
            if (starts_[middle + 1] > tile)
                high = middle;
            else
                low = middle + 1;
        }
        rank_ = low;
    }
    __device__ Tile find(uint32_t tile) {
        while (starts_[rank_ + 1] <= tile) ++rank_;
        const DeviceList list = store_.lists[probed_[rank_]];
        const uint32_t in_list = tile - starts_[rank_];
        const uint32_t position = in_list * tile_entries + lane_id();
        return {list.tiles + size_t{in_list} * store_.layout.tile_bytes(),
                terms_[rank_] + __ldg(list.offsets + position), list.first + position};
    }

  private:
    const StoreView& store_;
    const uint32_t* starts_;
    const uint32_t* probed_;
    const float* terms_;
    uint32_t probes_;
    uint32_t rank_ = 0;
};

template <class Shape, int width>
__device__ void scan_part(const ScanArguments& a, uint32_t query, uint32_t split,
                          typename BlockSelect<Shape>::Storage& storage, float* table) {
    constexpr int ahead = 4;  // tiles a warp works on at a time
    const StoreView& store = a.scan.store;
    const uint32_t slices = store.layout.slices;
    const ListQuery wanted = a.scan.queries.wanted[query];
    const uint32_t candidates = candidates_for(a.scan.queries.k);
    TileFinder finder(a, query, min(wanted.probes, store.model.shape.lists));
    const uint32_t tiles = finder.tiles();
    const auto bound_of = [&](uint32_t i) {
        return static_cast<uint32_t>(uint64_t{tiles} * i / a.scan.splits);
    };
    const uint32_t begin = bound_of(split), end = bound_of(split + 1);
    const LaneColumns<width> columns;
    BlockSelect<Shape> select(storage, candidates_for(wanted.k));

    const uint32_t warp = threadIdx.x / 32;
    if (begin < end) {
        load_table<Shape>(a, query, 0, table);
        if (begin + warp < end) finder.seek(begin + warp);
    }
    __syncthreads();
    for (uint32_t base = begin; base < end; base += Shape::warps * ahead) {
        Tile tile[ahead];
        float sum[ahead] = {};
#pragma unroll
        for (int i = 0; i < ahead; ++i) {
            const uint32_t at = base + i * Shape::warps + warp;
            tile[i] = {nullptr, __builtin_nanf(""), 0};
            if (at < end) tile[i] = finder.find(at);
        }
        for (uint32_t slice = 0; slice < slices; ++slice) {
            if (slices > a.resident_slices && slice % a.resident_slices == 0) {
                __syncthreads();
                load_table<Shape>(a, query, slice, table);
                __syncthreads();
            }
            CodeWords<width> codes[ahead];
#pragma unroll
            for (int i = 0; i < ahead; ++i)
                if (tile[i].codes)
                    codes[i].load(reinterpret_cast<const uint4*>(tile[i].codes) +
                                  slice * (tile_entries * width / 16));
            const float* part = table + slice % a.resident_slices * (codewords * width);
#pragma unroll
            for (int i = 0; i < ahead; ++i)
                if (tile[i].codes) sum[i] = add_one(part, codes[i], columns, sum[i]);
        }
        int next = 0;
        while (true) {
#pragma unroll
            for (int i = 0; i < ahead; ++i) {
                if (i != next || select.room() < 32) continue;
                const float distance = tile[i].base + sum[i];
                select.collect(distance <= select.bound(), make_key(distance, tile[i].entry));
                next = i + 1;
            }
            if (!__syncthreads_or(next < ahead)) break;
            select.cut();
        }
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
    const auto resident = static_cast<uint32_t>(
        std::clamp<size_t>(room / slice_bytes, 1, scan.store.layout.slices));
    const uint32_t blocks =
        scan.only ? 4 * context.processors : scan.queries.count * scan.splits;
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
    launch("find_overflows", find_overflows, {divide_up(queries, 256u), 256, 0, stream},
           candidates, queries, overflowed, count);
}

}  // namespace pgwarp::gpu
