// WarpSelect, Algorithm 3 of the paper (see networks.h): the k smallest of a stream of keys, all
// state in the registers of one warp.
//
// The warp queue W is a sorted lane-stride array; each lane has a thread queue T of up to `queue`
// keys that passed the bound W[k - 1]. When the queue of any lane is full, the warp sorts all
// thread queues together and merges them into W.
#pragma once

#include "kernels/cuda/select/keys.h"
#include "kernels/cuda/select/networks.h"

namespace pgwarp::gpu {

inline constexpr unsigned whole_warp = 0xffffffffu;

__device__ __forceinline__ uint32_t lane_id() {
    return threadIdx.x % 32;
}
// The 32-bit address that instructions for shared memory take.
__device__ __forceinline__ uint32_t shared_address(const void* pointer) {
    return static_cast<uint32_t>(__cvta_generic_to_shared(pointer));
}

// The Machine of networks.h: register arrays, compared by shuffles.
template <int registers>
struct LaneStrideArray {
    uint64_t key[registers];

    __device__ __forceinline__ void compare(int i, int j) {
        const bool swap = key[j] < key[i];
        const uint64_t small = swap ? key[j] : key[i];
        key[j] = swap ? key[i] : key[j];
        key[i] = small;
    }
    __device__ __forceinline__ void compare_reversed(int i, int j) {
        const uint64_t from_j = __shfl_xor_sync(whole_warp, key[j], 31);
        const uint64_t from_i = __shfl_xor_sync(whole_warp, key[i], 31);
        key[i] = from_j < key[i] ? from_j : key[i];
        key[j] = from_i > key[j] ? from_i : key[j];
    }
    // Compare-swap of lanes `distance` apart; the lower lane keeps the smaller key if `ascending`.
    __device__ __forceinline__ void compare_lanes(int i, int distance, bool ascending) {
        const uint64_t other = __shfl_xor_sync(whole_warp, key[i], distance);
        const bool low = (lane_id() & distance) == 0;
        key[i] = (other < key[i]) == (low == ascending) ? other : key[i];
    }
    __device__ __forceinline__ void merge_register(int i) {
#pragma unroll
        for (int distance = 16; distance > 0; distance /= 2) compare_lanes(i, distance, true);
    }
    __device__ __forceinline__ void sort_register(int i) {
#pragma unroll
        for (int size = 2; size <= 32; size *= 2) {
            const bool ascending = (lane_id() & size) == 0;  // always true for size 32
#pragma unroll
            for (int distance = size / 2; distance > 0; distance /= 2)
                compare_lanes(i, distance, ascending);
        }
    }
};

// k <= `registers` * 32.
template <int registers, int queue>
class WarpSelect {
  public:
    __device__ explicit WarpSelect(uint32_t k) : last_(k - 1), bound_(bits_float(infinity_bits)) {
#pragma unroll
        for (int i = 0; i < registers + queue; ++i) array_.key[i] = no_key;
    }

    // Larger values are not selected.
    __device__ float bound() const {
        return bound_;
    }

    // Called by all lanes, each with its own value; NaN for none. Call merge() after add() if
    // full(). The two are separate so that a caller can keep one copy of the network in its code.
    __device__ __forceinline__ void add(float value, uint32_t index) {
        if (value <= bound_) push(make_key(value, index));
    }
    // Like add(value, index), for a key; no_key for none.
    __device__ __forceinline__ void add(uint64_t key) {
        if (key_value(key) <= bound_) push(key);
    }
    __device__ __forceinline__ bool full() const {
        return __any_sync(whole_warp, waiting_ == queue);
    }

    // Call it also before reading the result: key(i) is then element 32 i + lane of the sorted
    // keys.
    __device__ void merge() {
        sort_odd<registers, queue>(array_);
        merge_odd<0, registers, queue, false>(array_);
#pragma unroll
        for (int i = 0; i < queue; ++i) array_.key[registers + i] = no_key;
        waiting_ = 0;
        uint64_t last = no_key;
#pragma unroll
        for (int i = 0; i < registers; ++i)
            if (i == static_cast<int>(last_ / 32)) last = array_.key[i];
        last = __shfl_sync(whole_warp, last, last_ % 32);
        // Fewer than k keys so far: no bound yet.
        bound_ = last == no_key ? bits_float(infinity_bits) : key_value(last);
    }
    __device__ uint64_t key(int i) const {
        return array_.key[i];
    }

  private:
    __device__ __forceinline__ void push(uint64_t key) {
#pragma unroll
        for (int i = 0; i < queue; ++i)
            if (i == waiting_) array_.key[registers + i] = key;
        ++waiting_;
    }

    LaneStrideArray<registers + queue> array_;  // W, then T
    int waiting_ = 0;                           // keys in this lane's T
    uint32_t last_;
    float bound_;
};

}  // namespace pgwarp::gpu
