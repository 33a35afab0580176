// The k smallest of a row that fits the registers of one warp.
//
// For small k, the warp searches for a threshold with at least k and at most `kept` values at or
// below it. The lanes' minima give a first guess that usually suffices; otherwise the warp refines
// it by counting. The values up to the threshold are gathered and sorted. For large k the whole row
// is sorted.
#pragma once

#include "kernels/cuda/select/block_sort.cuh"

namespace pgwarp::gpu {

// Loads four values of a row from `column` on; NaN past its end.
__device__ __forceinline__ void load_four(const float* row, uint32_t column, uint32_t length,
                                          float (&four)[4]) {
    const float* from = row + column;
    if (column + 4 <= length && reinterpret_cast<uintptr_t>(from) % 16 == 0) {
        const float4 loaded = __ldcs(reinterpret_cast<const float4*>(from));
        four[0] = loaded.x, four[1] = loaded.y, four[2] = loaded.z, four[3] = loaded.w;
        return;
    }
#pragma unroll
    for (int i = 0; i < 4; ++i)
        four[i] = column + i < length ? __ldcs(from + i) : __builtin_nanf("");
}

// `items` values per lane; a multiple of 4.
template <int items>
class ShortRow {
  public:
    static constexpr uint32_t most = items * 32;
    static constexpr uint32_t kept = 128;  // the largest k of select()

    // The column of a lane's value i: four adjacent columns per lane, for 16-byte loads.
    __device__ static uint32_t column(int i) { return i / 4 * 128 + lane_id() * 4 + i % 4; }

    // load(column, four) loads four values from `column` on, a multiple of 4; NaN past the end.
    template <class Load>
    __device__ explicit ShortRow(Load load) {
        uint32_t mine = 0;
#pragma unroll
        for (int i = 0; i < items; i += 4) {
            float four[4];
            load(column(i), four);
#pragma unroll
            for (int j = 0; j < 4; ++j) value_[i + j] = four[j];
        }
#pragma unroll
        for (int i = 0; i < items; ++i) mine += value_[i] == value_[i];
        count_ = __reduce_add_sync(whole_warp, mine);
    }

    // Sorts the whole row: item i of a lane is element lane * items + i; no_key after the last.
    __device__ void sort(uint64_t (&key)[items]) const {
#pragma unroll
        for (int i = 0; i < items; ++i) key[i] = key_of(i);
        block_sort<32, items>(key, static_cast<uint64_t*>(nullptr));
    }

    // Selects the k smallest, k <= kept: calls put(i, key) for i < k in order, no_key after the
    // last. `room`: shared memory for `kept` keys, private to this warp.
    template <class Put>
    __device__ void select(uint32_t k, uint64_t* room, Put put) const {
        const Last last = count_ <= kept ? Last{bits_float(infinity_bits), no_index} : find_last(k);
        const uint32_t found = gather(last, room);
        __syncwarp();
        if (found <= 32)
            sort_gathered<1>(k, found, room, put);
        else
            sort_gathered<kept / 32>(k, found, room, put);
        __syncwarp();
    }

  private:
    // Threshold of the selection: (value, column) pairs up to this one. no_index: all columns.
    struct Last {
        float value;
        uint32_t column;
    };
    __device__ bool up_to(const Last& last, int i) const {
        return value_[i] < last.value || (value_[i] == last.value && column(i) <= last.column);
    }
    __device__ uint64_t key_of(int i) const {
        return value_[i] == value_[i] ? make_key(value_[i], column(i)) : no_key;
    }

    __device__ uint32_t count_up_to(float value) const {
        uint32_t mine = 0;
#pragma unroll
        for (int i = 0; i < items; ++i) mine += value_[i] <= value;
        return __reduce_add_sync(whole_warp, mine);
    }
    __device__ uint32_t count_up_to(const Last& last) const {
        uint32_t mine = 0;
#pragma unroll
        for (int i = 0; i < items; ++i) mine += up_to(last, i);
        return __reduce_add_sync(whole_warp, mine);
    }

    // The j-th smallest of the lanes' minima, j <= 32: at least j values are at or below it.
    __device__ float guess(float least, uint32_t j) const {
#pragma unroll
        for (int size = 2; size <= 32; size *= 2)
#pragma unroll
            for (int distance = size / 2; distance > 0; distance /= 2) {
                const float other = __shfl_xor_sync(whole_warp, least, distance);
                const bool low = (lane_id() & distance) == 0, up = (lane_id() & size) == 0;
                least = low == up ? fminf(least, other) : fmaxf(least, other);
            }
        return __shfl_sync(whole_warp, least, j - 1);
    }

    // A threshold with k to `kept` values up to it. The row has more than `kept` values.
    __device__ Last find_last(uint32_t k) const {
        float mine = value_[0];
#pragma unroll
        for (int i = 1; i < items; ++i) mine = fminf(mine, value_[i]);
        if (mine != mine) mine = bits_float(infinity_bits);  // all values of the lane are NaN
        const uint32_t least = __reduce_min_sync(whole_warp, ordered_bits(mine));
        float value = guess(mine, min(k, 32u));
        uint64_t low = static_cast<uint64_t>(least) << 32;  // too few values up to here,
        uint64_t high = no_key;                             // too many up to here
#pragma unroll 1
        for (int i = 0; i < 4; ++i) {
            const uint32_t found = count_up_to(value);
            if (found >= k && found <= kept) return {value, no_index};
            (found < k ? low : high) = make_key(value, no_index);
            // Interpolate: the count grows roughly linearly with the distance from the minimum.
            const float origin = ordered_value(least);
            const float share =
                static_cast<float>((k + kept) / 2) / static_cast<float>(max(found, 1u));
            value = origin + (value - origin) * share;
            const uint64_t next = make_key(value, no_index);
            if (!(next > low && next < high)) break;
        }
        // Bisect: over bits of the value first, then over columns of equal values.
#pragma unroll 1
        while (true) {
            const uint64_t middle = low + (high - low) / 2;
            const Last last{key_value(middle), key_index(middle)};
            const uint32_t found = count_up_to(last);
            if (found >= k && found <= kept) return last;
            (found < k ? low : high) = middle;
        }
    }

    // Compacts the values up to `last` into `room` as keys; returns their number.
    __device__ uint32_t gather(const Last& last, uint64_t* room) const {
        return last.column == no_index
                   ? gather_if(room, [&](int i) { return value_[i] <= last.value; })
                   : gather_if(room, [&](int i) { return up_to(last, i); });
    }
    template <class Wanted>
    __device__ uint32_t gather_if(uint64_t* room, Wanted wanted) const {
        uint32_t mine = 0;
#pragma unroll
        for (int i = 0; i < items; ++i) mine += wanted(i);
        uint32_t at = mine;
#pragma unroll
        for (int distance = 1; distance < 32; distance *= 2) {
            const uint32_t before = __shfl_up_sync(whole_warp, at, distance);
            if (lane_id() >= distance) at += before;
        }
        const uint32_t found = __shfl_sync(whole_warp, at, 31);
        at -= mine;
#pragma unroll
        for (int i = 0; i < items; ++i)
            if (wanted(i)) room[at++] = make_key(value_[i], column(i));
        return found;
    }

    template <int sort_items, class Put>
    __device__ static void sort_gathered(uint32_t k, uint32_t found, const uint64_t* room,
                                         Put put) {
        uint64_t key[sort_items];
#pragma unroll
        for (int i = 0; i < sort_items; ++i) {
            const uint32_t at = i * 32 + lane_id();
            key[i] = at < found ? room[at] : no_key;
        }
        block_sort<32, sort_items>(key, static_cast<uint64_t*>(nullptr));
#pragma unroll
        for (int i = 0; i < sort_items; ++i) {
            const uint32_t at = lane_id() * sort_items + i;
            if (at < k) put(at, key[i]);
        }
        for (uint32_t at = 32 * sort_items + lane_id(); at < k; at += 32) put(at, no_key);
    }

    float value_[items];
    uint32_t count_;  // values of the row that are not NaN
};

}  // namespace pgwarp::gpu
