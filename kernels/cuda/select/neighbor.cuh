#pragma once

#include "kernels/cuda/select/block_sort.cuh"
#include "kernels/executor.h"

#include <cstddef>

namespace pgwarp::gpu {

// One 16-byte store, which also zeroes the padding between the members.
__device__ __forceinline__ void put_neighbor(Neighbor* to, const IdKey& key) {
    static_assert(sizeof(Neighbor) == 16 && offsetof(Neighbor, id) == 8);
    *reinterpret_cast<uint4*>(to) = {__float_as_uint(ordered_value(key.distance)), 0, key.id_low,
                                     key.id_high};
}

}  // namespace pgwarp::gpu
