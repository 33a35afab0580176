// The inner loop of every list scan: sums the table entries that an entry's code bytes select.
#pragma once

#include "kernels/cuda/lists/code_tiles.h"
#include "kernels/cuda/select/warp_select.cuh"

#include <cuda_fp16.h>

namespace pgwarp::gpu {

// A lane's column at each step, times 256 / width, in one byte; three bytes per register, the
// fourth is zero. One byte-permute then joins a code byte and a column to
// code * 256 + column * 256 / width, which is 256 / width times the index in a table
// (code)(column).
template <int width>
struct LaneColumns {
    uint32_t packed[(width + 2) / 3];

    __device__ LaneColumns() {
#pragma unroll
        for (int i = 0; i < (width + 2) / 3; ++i) {
            packed[i] = 0;
#pragma unroll
            for (int b = 0; b < 3; ++b)
                packed[i] |= (lane_id() + 3 * i + b) % width * (256 / width) << 8 * b;
            // Keeps the value in a register: the compiler would recompute it at every step.
            asm volatile("" : "+r"(packed[i]));
        }
    }
};

// 32-bit addresses of shared memory save one addition per look-up compared with pointers.
__device__ __forceinline__ uint2 load_shared_pair(uint32_t address) {
    uint2 pair;
    asm volatile("ld.shared.v2.u32 {%0, %1}, [%2];" : "=r"(pair.x), "=r"(pair.y) : "r"(address));
    return pair;
}
__device__ __forceinline__ float load_shared_float(uint32_t address) {
    float value;
    asm volatile("ld.shared.f32 %0, [%1];" : "=f"(value) : "r"(address));
    return value;
}

// The code bytes of an entry in one slice, in the order of its lane's steps.
template <int width>
struct CodeWords {
    uint32_t word[width / 4];

    // `tile`: the slice within the entry's tile.
    __device__ __forceinline__ void load(const uint4* tile) {
#pragma unroll
        for (int i = 0; i < width / 16; ++i) {
            const uint4 four = __ldg(tile + i * tile_entries + lane_id());
            word[4 * i] = four.x, word[4 * i + 1] = four.y;
            word[4 * i + 2] = four.z, word[4 * i + 3] = four.w;
        }
    }
};

template <int width>
__device__ __forceinline__ uint32_t scaled_place(const CodeWords<width>& codes,
                                                 const LaneColumns<width>& columns, int step) {
    return __byte_perm(codes.word[step / 4], columns.packed[step / 3],
                       0x7700 | (step % 4) << 4 | (4 + step % 3));
}

// Adds table entries of four queries to their sums. `table`: halves, (code)(column)(query), at a
// shared_address(). Eight steps are added in half precision, then in float32.
template <int width>
__device__ __forceinline__ void add_four(uint32_t table, const CodeWords<width>& codes,
                                         const LaneColumns<width>& columns, float (&sum)[4]) {
#pragma unroll
    for (int first = 0; first < width; first += 8) {
        __half2 low, high;
#pragma unroll
        for (int step = first; step < first + 8; ++step) {
            const uint32_t at = scaled_place(codes, columns, step) / (256 / width / 8);
            const uint2 four = load_shared_pair(table + at);
            const __half2 a = *reinterpret_cast<const __half2*>(&four.x);
            const __half2 b = *reinterpret_cast<const __half2*>(&four.y);
            low = step == first ? a : __hadd2(low, a);
            high = step == first ? b : __hadd2(high, b);
        }
        const float2 first_two = __half22float2(low), last_two = __half22float2(high);
        sum[0] += first_two.x;
        sum[1] += first_two.y;
        sum[2] += last_two.x;
        sum[3] += last_two.y;
    }
}

// Like add_four(), for one query. `table`: floats, (code)(column), at a shared_address().
template <int width>
__device__ __forceinline__ float add_one(uint32_t table, const CodeWords<width>& codes,
                                         const LaneColumns<width>& columns, float sum) {
    // Four independent sums hide the latency of additions.
    float part[4] = {};
#pragma unroll
    for (int step = 0; step < width; ++step) {
        const uint32_t at = scaled_place(codes, columns, step) / (256 / width / sizeof(float));
        part[step % 4] += load_shared_float(table + at);
    }
    return sum + ((part[0] + part[1]) + (part[2] + part[3]));
}

}  // namespace pgwarp::gpu
