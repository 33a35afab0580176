#include "kernels/cuda/lists/scan_lists.h"

#include "kernels/cuda/select/keys.h"
#include "kernels/cuda/base/launch.cuh"
#include "kernels/cuda/lists/look_up.cuh"
#include "kernels/cuda/lists/tables.cuh"

namespace pgwarp::gpu {

namespace {

constexpr unsigned warps = 8;  // that scan; one more prefetches the next job
constexpr unsigned scanners = warps * 32;
constexpr unsigned threads = scanners + 32;
constexpr unsigned blocks_per_processor = 3;
// Entries per thread whose sums stay in registers if a code has several slices.
constexpr int several = 8;

enum class Pass { bounds, candidates };

// A work item with its list and its queries. If it has fewer than four queries, the first one is
// repeated as padding, with a bound or limit that accepts no entry.
struct Job {
    WorkItem item;  // tiles == 0: no more items
    DeviceList list;
    uint32_t query[group_queries];
    float scale[group_queries];
    float term[group_queries];
    float bound[group_queries];  // NaN for padding
    uint32_t place[group_queries], limit[group_queries];
};

template <int width>
struct ScanShared {
    uint2 table[codewords * width];
    Job job[2];
};

__device__ __forceinline__ void scanner_barrier() {
    asm volatile("bar.sync 1, %0;" ::"n"(scanners) : "memory");
}

// The producer warp: prepares the next job, a chain of dependent loads, while the other warps scan.
template <Pass pass>
class JobSource {
  public:
    __device__ explicit JobSource(const ListScan& scan)
        : scan_(scan), items_(scan.bins.item_count[0]) {
        if (lane_id() == 0) next_ = atomicAdd(scan.bins.item_count + 1, 1u);
    }

    __device__ void prepare(Job& job) {
        const uint32_t at = __shfl_sync(whole_warp, next_, 0);
        if (at >= items_) {
            if (lane_id() == 0) job.item = {};
            return;
        }
        if (lane_id() == 0) next_ = atomicAdd(scan_.bins.item_count + 1, 1u);
        const WorkItem item = scan_.bins.items[at];
        if (lane_id() == group_queries) {
            job.item = item;
            job.list = scan_.store.lists[item.list];
        }
        if (lane_id() >= group_queries) return;
        const uint32_t i = lane_id();
        const bool real = i < item.visits;
        const Visit visit = scan_.bins.visits[item.first_visit + (real ? i : 0)];
        job.query[i] = visit.query;
        job.scale[i] = table_scale(scan_.queries.norms[visit.query], scan_.store.largest_word);
        job.term[i] = visit.term;
        if constexpr (pass == Pass::bounds) {
            job.place[i] = visit.place;
            job.limit[i] = real ? visit.limit : 0;
        } else {
            job.bound[i] = real ? scan_.bounds[visit.query] : __builtin_nanf("");
        }
    }

  private:
    const ListScan& scan_;
    uint32_t items_;
    uint32_t next_ = 0;
};

// Interleaves a unit (see code_tiles.h) of four queries' tables and stores it to shared memory.
template <int width>
__device__ __forceinline__ void store_unit(const uint4 (&part)[group_queries], uint32_t unit,
                                           ScanShared<width>& shared) {
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

// Loads one slice of four queries' tables into shared memory.
template <int width>
__device__ void load_tables(const ListScan& scan, const Job& job, uint32_t slice,
                            ScanShared<width>& shared) {
    const uint32_t units = table_units(width);
    const uint4* from[group_queries];
#pragma unroll
    for (int q = 0; q < group_queries; ++q)
        from[q] = scan.tables + (size_t{job.query[q]} * scan.store.layout.slices + slice) * units;
    // Two units at a time: eight loads are in flight before the first is used.
    constexpr int ahead = 2;
    static_assert(codewords / 4 * width / 2 % (ahead * scanners) == 0);
#pragma unroll 1
    for (uint32_t first = threadIdx.x; first < units; first += ahead * scanners) {
        uint4 part[ahead][group_queries];
#pragma unroll
        for (int u = 0; u < ahead; ++u)
#pragma unroll
            for (int q = 0; q < group_queries; ++q)
                part[u][q] = __ldcg(from[q] + first + u * scanners);
#pragma unroll
        for (int u = 0; u < ahead; ++u) store_unit(part[u], first + u * scanners, shared);
    }
}

// Turns an entry's four sums into distances, and stores them (bounds) or collects candidates.
template <Pass pass>
__device__ __forceinline__ void take_sums(const ListScan& scan, const Job& job, uint32_t entry,
                                          float offset, const float (&sum)[group_queries]) {
    float distance[group_queries];
#pragma unroll
    for (int q = 0; q < group_queries; ++q)
        distance[q] = fmaf(sum[q], job.scale[q], offset) + job.term[q];
    if constexpr (pass == Pass::bounds) {
#pragma unroll
        for (int q = 0; q < group_queries; ++q)
            if (entry < job.limit[q])
                scan.distances[size_t{job.query[q]} * scan.distance_room + job.place[q] + entry] =
                    distance[q];
    } else {
        bool any = false;
#pragma unroll
        for (int q = 0; q < group_queries; ++q) any |= distance[q] <= job.bound[q];
        if (!any) return;
        // Issue all atomics first, so that their latencies overlap.
        uint32_t at[group_queries];
#pragma unroll
        for (int q = 0; q < group_queries; ++q) {
            at[q] = scan.candidates.room;
            if (distance[q] <= job.bound[q])
                at[q] = atomicAdd(&scan.candidates.counts[job.query[q]], 1u);
        }
#pragma unroll
        for (int q = 0; q < group_queries; ++q)
            if (at[q] < scan.candidates.room)
                scan.candidates.keys[size_t{job.query[q]} * scan.candidates.room + at[q]] =
                    make_key(distance[q], job.list.first + entry);
    }
}

// Streams the tiles of a list with one slice: a warp prefetches its next tile while it sums one.
template <int width>
class TileStream {
  public:
    __device__ explicit TileStream(const Job& job)
        : tiles_(reinterpret_cast<const uint4*>(job.list.tiles)),
          offsets_(job.list.offsets),
          tile_(job.item.first_tile + threadIdx.x / 32),
          end_(job.item.first_tile + job.item.tiles) {
        fetch(tile_);
    }
    __device__ void fetch(uint32_t tile) {
        if (tile >= end_) return;
        next_.load(tiles_ + size_t{tile} * (tile_entries * width / 16));
        next_offset_ = __ldg(offsets_ + tile * tile_entries + lane_id());
    }
    // Calls visit(entry, offset, codes) for the warp's tiles.
    template <class VisitTile>
    __device__ void scan(VisitTile visit) {
        for (; tile_ < end_; tile_ += warps) {
            const CodeWords<width> codes = next_;
            const float offset = next_offset_;
            fetch(tile_ + warps);
            visit(tile_ * tile_entries + lane_id(), offset, codes);
        }
    }

  private:
    const uint4* tiles_;
    const float* offsets_;
    uint32_t tile_, end_;
    CodeWords<width> next_;
    float next_offset_ = 0;
};

// Scans tiles of a list with several slices: the sums of `several` entries per thread stay in
// registers while the tables of each slice are loaded in turn. Called by the scanning warps only.
template <int width, Pass pass>
__device__ void scan_slices(const ListScan& scan, ScanShared<width>& shared, const Job& job,
                            const LaneColumns<width>& columns, uint32_t first_tile,
                            uint32_t tile_count) {
    const uint32_t table = shared_address(shared.table);
    const uint32_t slices = scan.store.layout.slices;
    const auto* tiles = reinterpret_cast<const uint4*>(job.list.tiles);
    constexpr uint32_t slice_words = tile_entries * width / 16;
    float sum[several][group_queries] = {};
    for (uint32_t slice = 0; slice < slices; ++slice) {
        scanner_barrier();
        load_tables(scan, job, slice, shared);
        scanner_barrier();
#pragma unroll
        for (int i = 0; i < several; ++i) {
            const uint32_t tile = threadIdx.x / 32 + i * warps;
            if (tile >= tile_count) continue;
            CodeWords<width> codes;
            codes.load(tiles + (size_t{first_tile + tile} * slices + slice) * slice_words);
            add_four(table, codes, columns, sum[i]);
        }
    }
#pragma unroll
    for (int i = 0; i < several; ++i) {
        const uint32_t tile = threadIdx.x / 32 + i * warps;
        if (tile >= tile_count) continue;
        const uint32_t entry = (first_tile + tile) * tile_entries + lane_id();
        take_sums<pass>(scan, job, entry, __ldg(job.list.offsets + entry), sum[i]);
    }
}

template <int width, bool one_slice, Pass pass>
__device__ void scan_jobs(const ListScan& scan, ScanShared<width>& shared) {
    const LaneColumns<width> columns;
    for (int turn = 0;; turn ^= 1) {
        __syncthreads();  // the job is ready, and no warp still reads the last job's tables
        const Job& job = shared.job[turn];
        if (job.item.tiles == 0) break;
        if constexpr (one_slice) {
            TileStream<width> stream(job);
            load_tables(scan, job, 0, shared);
            __syncthreads();
            const uint32_t table = shared_address(shared.table);
            stream.scan([&](uint32_t entry, float offset, const CodeWords<width>& codes) {
                float sum[group_queries] = {};
                add_four(table, codes, columns, sum);
                take_sums<pass>(scan, job, entry, offset, sum);
            });
        } else {
            __syncthreads();
            for (uint32_t done = 0; done < job.item.tiles; done += several * warps)
                scan_slices<width, pass>(scan, shared, job, columns, job.item.first_tile + done,
                                         min(several * warps, job.item.tiles - done));
        }
    }
}

// Persistent blocks: each takes items until none is left.
template <int width, bool one_slice, Pass pass>
__global__ void __launch_bounds__(threads, blocks_per_processor) scan_items(ListScan scan) {
    auto& shared = *shared_memory<ScanShared<width>>();
    if (threadIdx.x < scanners) {
        scan_jobs<width, one_slice, pass>(scan, shared);
        return;
    }
    JobSource<pass> source(scan);
    source.prepare(shared.job[0]);
    for (int turn = 0;; turn ^= 1) {
        __syncthreads();
        if (shared.job[turn].item.tiles == 0) break;
        __syncthreads();
        source.prepare(shared.job[turn ^ 1]);
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
    auto* launch_one =
        layout.width == 32 ? &launch_scan<32, true, pass> : &launch_scan<16, true, pass>;
    auto* launch_several =
        layout.width == 32 ? &launch_scan<32, false, pass> : &launch_scan<16, false, pass>;
    (layout.slices == 1 ? launch_one : launch_several)(scan, processors, stream);
}

}  // namespace

void scan_lists(const ListScan& scan, uint32_t processors, cudaStream_t stream) {
    if (scan.distances)
        launch_pass<Pass::bounds>(scan, processors, stream);
    else
        launch_pass<Pass::candidates>(scan, processors, stream);
}

}  // namespace pgwarp::gpu
