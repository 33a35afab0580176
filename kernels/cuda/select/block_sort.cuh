// Bitonic sort in a block: `items` keys per thread, in registers. Keys of a thread are compared in
// place, keys of a warp by shuffles, keys of different warps through shared memory.
#pragma once

#include "kernels/cuda/select/warp_select.cuh"

namespace pgwarp::gpu {

__device__ __forceinline__ uint64_t from_lane_xor(uint64_t key, int distance) {
    return __shfl_xor_sync(whole_warp, key, distance);
}

// A distance and the 64-bit id of the neighbor; ordered by distance, then id.
struct IdKey {
    uint32_t distance;  // ordered_bits()
    uint32_t id_high;
    uint32_t id_low;

    __device__ uint64_t id() const { return static_cast<uint64_t>(id_high) << 32 | id_low; }
    __device__ friend bool operator<(const IdKey& a, const IdKey& b) {
        return a.distance != b.distance ? a.distance < b.distance : a.id() < b.id();
    }
};
__device__ __forceinline__ IdKey from_lane_xor(const IdKey& key, int distance) {
    return {__shfl_xor_sync(whole_warp, key.distance, distance),
            __shfl_xor_sync(whole_warp, key.id_high, distance),
            __shfl_xor_sync(whole_warp, key.id_low, distance)};
}

// Blocked order: element i of the result is item i % items of thread i / items. `exchange` is
// shared memory for threads * items keys; reuse it after the next barrier. With 32 threads each
// warp sorts its own keys, and `exchange` may be null.
template <int threads, int items, class Key>
__device__ __forceinline__ void block_sort(Key (&item)[items], Key* exchange) {
    const int thread = threadIdx.x % threads;
#pragma unroll 1
    for (int size = 2; size <= threads * items; size *= 2) {
#pragma unroll 1
        for (int stride = size / 2; stride >= items; stride /= 2) {
            const int distance = stride / items;
            const bool low = (thread & distance) == 0;
            const bool ascending = (thread * items & size) == 0;
            if (threads > 32 && distance >= 32) {
                __syncthreads();
#pragma unroll
                for (int i = 0; i < items; ++i) exchange[i * threads + thread] = item[i];
                __syncthreads();
            }
#pragma unroll
            for (int i = 0; i < items; ++i) {
                const Key other = threads == 32 || distance < 32
                                      ? from_lane_xor(item[i], distance)
                                      : exchange[i * threads + (thread ^ distance)];
                if ((other < item[i]) == (low == ascending)) item[i] = other;
            }
        }
#pragma unroll
        for (int stride = items / 2; stride > 0; stride /= 2) {
            if (stride >= size) continue;
#pragma unroll
            for (int i = 0; i < items; ++i) {
                if (i & stride) continue;
                const bool ascending = ((thread * items + i) & size) == 0;
                const Key a = item[i], b = item[i + stride];
                if ((b < a) == ascending) {
                    item[i] = b;
                    item[i + stride] = a;
                }
            }
        }
    }
}

}  // namespace pgwarp::gpu
