// The tiles of one query's lists, the nearest list first, and what scans by query do with them.
#pragma once

#include "kernels/cuda/lists/search_state.h"
#include "kernels/cuda/select/block_select.cuh"

namespace pgwarp::gpu {

struct QueryTiles {
    const uint32_t* starts;  // (probes + 1): prefix sums of tiles
    const uint32_t* probed;  // (probes)
    const float* terms;      // (probes)
    uint32_t probes;

    __device__ QueryTiles(const QueryView& queries, uint32_t query, uint32_t probe_count)
        : starts(queries.tile_starts + size_t{query} * (queries.probes + 1)),
          probed(queries.probed + size_t{query} * queries.probes),
          terms(queries.terms + size_t{query} * queries.probes),
          probes(probe_count) {}

    // Rank of the list that contains the tile.
    __device__ uint32_t rank_of(uint32_t tile) const { return rank_between(tile, 0, probes); }
    // The same, where a rank is known that is not larger, and mostly not far from it.
    __device__ uint32_t rank_of(uint32_t tile, uint32_t low) const {
        uint32_t step = 1;
        while (low + step < probes && starts[low + step] <= tile) {
            low += step;
            step *= 2;
        }
        return rank_between(tile, low, min(low + step, probes));
    }

  private:
    __device__ uint32_t rank_between(uint32_t tile, uint32_t low, uint32_t high) const {
        while (low < high) {
            const uint32_t middle = (low + high) / 2;
            if (starts[middle + 1] > tile)
                high = middle;
            else
                low = middle + 1;
        }
        return low;
    }
};

// Where part i of `parts` nearly equal parts of `all` begins.
__device__ __forceinline__ uint32_t part_begin(uint32_t all, uint32_t i, uint32_t parts) {
    return static_cast<uint32_t>(static_cast<uint64_t>(all) * i / parts);
}

// Zero-extended to 48 bits; the most significant word comes first.
__device__ __forceinline__ uint64_t tid_at(const DeviceList& list, uint32_t position) {
    const uint16_t* tid = list.tids + size_t{position} * 3;
    return static_cast<uint64_t>(tid[0]) << 32 | static_cast<uint64_t>(tid[1]) << 16 | tid[2];
}

// Called by the whole block after a cut: writes what it kept as split `split` of the query's
// candidates.
template <class Shape, class Scan>
__device__ void put_kept(const BlockSelect<Shape>& select, const Scan& scan, uint32_t query,
                         uint32_t split) {
    const uint32_t candidates = list_candidates(scan.queries.k);
    const CandidateView& out = scan.candidates;
    uint64_t* keys = out.keys + size_t{query} * out.room + split * candidates;
    for (uint32_t i = threadIdx.x; i < candidates; i += Shape::threads)
        keys[i] = i < select.kept_count() ? select.kept()[i] : no_key;
    if (split == 0 && threadIdx.x == 0) out.counts[query] = scan.splits * candidates;
}

}  // namespace pgwarp::gpu
