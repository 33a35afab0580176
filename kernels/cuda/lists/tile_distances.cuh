// Distances by code of single tiles of a query's lists, for kernels that do not scan them all.
#pragma once

#include "kernels/cuda/lists/look_up.cuh"
#include "kernels/cuda/lists/query_tiles.cuh"
#include "kernels/cuda/lists/scan_queries.h"

namespace pgwarp::gpu {

// Codes and offsets of a tile's entries.
struct TileCodes {
    const uint4* codes;    // slice 0
    const float* offsets;  // padded as codes are
    float term;
};

// A tile of one of the query's lists.
struct TileRef : TileCodes {
    const DeviceList* list;
    uint32_t position;  // of its first entry in the list
    uint32_t entries;   // without padding
};

// The tiles of a query's lists.
class ListTiles {
  public:
    // The store outlives it.
    __device__ ListTiles(const StoreView& store, const QueryScan& scan, uint32_t query,
                         uint32_t probes)
        : store_(store), tiles_(scan.queries, query, probes) {}

    __device__ uint32_t start(uint32_t rank) const {
        return tiles_.starts[min(rank, tiles_.probes)];
    }
    // Rank of the list that has the tile; `low` is a rank that is not larger.
    __device__ uint32_t rank_of(uint32_t tile, uint32_t low) const {
        return tiles_.rank_of(tile, low);
    }

    // `rank` is that of the list that has the tile.
    __device__ TileRef ref(uint32_t tile, uint32_t rank) const {
        TileRef ref;
        ref.list = store_.lists + tiles_.probed[rank];
        const DeviceList list = *ref.list;
        const uint32_t in_list = tile - tiles_.starts[rank];
        ref.codes = reinterpret_cast<const uint4*>(list.tiles) +
                    size_t{in_list} * (store_.layout.tile_bytes() / 16);
        ref.position = in_list * tile_entries;
        ref.offsets = list.offsets + ref.position;
        ref.term = tiles_.terms[rank];
        ref.entries = min(list.count - ref.position, uint32_t{tile_entries});
        return ref;
    }

  private:
    const StoreView& store_;
    QueryTiles tiles_;
};

// Sums that overflowed to NaN count as infinitely far, as on the CPU.
__device__ __forceinline__ float finite_or_infinite(float distance) {
    return distance == distance ? distance : bits_float(infinity_bits);
}

// Distances by code of one query's entries, by lanes of a warp.
template <int width>
class CodeDistances {
  public:
    static constexpr uint32_t slice_floats = codewords * width;

    // `table`: in shared memory, or null: the query's table is read from global memory.
    __device__ CodeDistances(const QueryScan& scan, uint32_t query, const float* table)
        : slices_(scan.store.layout.slices),
          in_shared_(table != nullptr),
          shared_table_(table ? shared_address(table) : 0),
          global_table_(scan.tables + size_t{query} * slices_ * slice_floats) {}

    // The distances of this lane's entries in `count` tiles, which may be other ones in each lane.
    // All codes of a slice are loaded before one is used. NaN: padding.
    template <int count>
    __device__ __forceinline__ void of(const TileCodes (&tile)[count],
                                       float (&distance)[count]) const {
        float offset[count], sum[count];
#pragma unroll
        for (int i = 0; i < count; ++i) {
            offset[i] = __ldg(tile[i].offsets + lane_id());
            sum[i] = 0;
        }
        for (uint32_t slice = 0; slice < slices_; ++slice) {
            CodeWords<width> codes[count];
#pragma unroll
            for (int i = 0; i < count; ++i)
                codes[i].load(tile[i].codes + slice * (tile_entries * width / 16));
#pragma unroll
            for (int i = 0; i < count; ++i)
                sum[i] = in_shared_ ? add_one(shared_table_ + slice * slice_floats * sizeof(float),
                                              codes[i], columns_, sum[i])
                                    : add_from_memory(global_table_ + slice * slice_floats,
                                                      codes[i], sum[i]);
        }
#pragma unroll
        for (int i = 0; i < count; ++i) distance[i] = (tile[i].term + offset[i]) + sum[i];
    }

  private:
    // As add_one(), with the table in global memory.
    __device__ float add_from_memory(const float* table, const CodeWords<width>& codes,
                                     float sum) const {
        float part[4] = {};
#pragma unroll
        for (int step = 0; step < width; ++step) {
            const uint32_t at = scaled_place(codes, columns_, step) / (256 / width);
            part[step % 4] += __ldg(table + at);
        }
        return sum + ((part[0] + part[1]) + (part[2] + part[3]));
    }

    const uint32_t slices_;
    const bool in_shared_;
    const LaneColumns<width> columns_;
    const uint32_t shared_table_;
    const float* global_table_;
};

template <typename T>
__device__ __forceinline__ const T* pointer_of_lane(const T* pointer, uint32_t lane) {
    const auto bits = reinterpret_cast<unsigned long long>(pointer);
    return reinterpret_cast<const T*>(__shfl_sync(whole_warp, bits, static_cast<int>(lane)));
}

__device__ __forceinline__ TileCodes codes_of_lane(const TileCodes& mine, uint32_t lane) {
    return {pointer_of_lane(mine.codes, lane), pointer_of_lane(mine.offsets, lane),
            __shfl_sync(whole_warp, mine.term, static_cast<int>(lane))};
}

}  // namespace pgwarp::gpu
