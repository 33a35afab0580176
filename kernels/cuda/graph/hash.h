// Hashes and pseudorandom numbers, the same on host and device.
#pragma once

#include "kernels/common.h"
#include "kernels/host_device.h"

namespace pgwarp::gpu {

PGWARP_HOST_DEVICE uint64_t hash64(uint64_t x) {
    x = (x + 0x9e3779b97f4a7c15ULL);
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ULL;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebULL;
    return x ^ (x >> 31);
}

// A cheap hash of x and salt to `bits` bits, with two multiplications.
PGWARP_HOST_DEVICE uint32_t short_hash(uint32_t x, uint32_t salt, uint32_t bits) {
    return ((x ^ salt) * 0x9e3779b1u ^ salt) * 0x85ebca77u >> (32 - bits);
}

// scatter() is a permutation of all 32-bit numbers, gather() its inverse.
inline constexpr uint32_t scatter_first = 0xa3d95fa7u, scatter_second = 0xcb1ab31fu;
PGWARP_HOST_DEVICE constexpr uint32_t inverse_of(uint32_t odd) {
    uint32_t inverse = odd;
    for (int i = 0; i < 5; ++i) inverse *= 2 - odd * inverse;
    return inverse;
}
PGWARP_HOST_DEVICE uint32_t scatter(uint32_t x) {
    x *= scatter_first;
    x ^= x >> 16;
    x *= scatter_second;
    return x ^ x >> 16;
}
PGWARP_HOST_DEVICE uint32_t gather(uint32_t x) {
    constexpr uint32_t first = inverse_of(scatter_first);
    constexpr uint32_t second = inverse_of(scatter_second);
    x ^= x >> 16;
    x *= second;
    x ^= x >> 16;
    return x * first;
}

}  // namespace pgwarp::gpu
