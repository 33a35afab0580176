// A value and its index as one 64-bit key. Keys order by (value, index), so that every selection is
// deterministic, ties included.
//
// Zeros of either sign are equal. NaN is never selected; infinities are values like any other.
#pragma once

#include "kernels/common.h"
#include "kernels/host_device.h"

#ifndef __CUDACC__
#include <bit>
#endif

namespace pgwarp::gpu {

inline constexpr uint64_t no_key = ~uint64_t{0};  // larger than every key
inline constexpr uint32_t no_index = ~uint32_t{0};
inline constexpr uint32_t infinity_bits = 0x7f800000u;

PGWARP_HOST_DEVICE uint32_t float_bits(float value) {
#ifdef __CUDA_ARCH__
    return __float_as_uint(value);
#else
    uint32_t bits;
    __builtin_memcpy(&bits, &value, sizeof bits);
    return bits;
#endif
}
PGWARP_HOST_DEVICE float bits_float(uint32_t bits) {
#ifdef __CUDA_ARCH__
    return __uint_as_float(bits);
#else
    float value;
    __builtin_memcpy(&value, &bits, sizeof value);
    return value;
#endif
}

// Maps a float to an unsigned number such that numbers order as the floats do.
PGWARP_HOST_DEVICE uint32_t ordered_bits(float value) {
    const uint32_t bits = float_bits(value + 0.0f);  // turns -0 into 0
    return bits ^ (static_cast<uint32_t>(static_cast<int32_t>(bits) >> 31) | 0x80000000u);
}
PGWARP_HOST_DEVICE float ordered_value(uint32_t ordered) {
    return bits_float(ordered ^ (((ordered >> 31) - 1) | 0x80000000u));
}

PGWARP_HOST_DEVICE uint64_t make_key(float value, uint32_t index) {
    return static_cast<uint64_t>(ordered_bits(value)) << 32 | index;
}
PGWARP_HOST_DEVICE uint32_t key_index(uint64_t key) {
    return static_cast<uint32_t>(key);
}
// NaN for no_key.
PGWARP_HOST_DEVICE float key_value(uint64_t key) {
    return ordered_value(static_cast<uint32_t>(key >> 32));
}

}  // namespace pgwarp::gpu
