// Kernel launches with error checks.
#pragma once

#include "kernels/cuda/base/check.h"

#include <utility>

namespace pgwarp::gpu {

// The block's dynamic shared memory.
template <class Storage>
__device__ __forceinline__ Storage* shared_memory() {
    extern __shared__ __align__(16) unsigned char shared_bytes[];
    return reinterpret_cast<Storage*>(shared_bytes);
}

struct Launch {
    dim3 blocks;
    unsigned threads;
    size_t shared_bytes;
    cudaStream_t stream;
};

template <class... Parameters, class... Arguments>
void launch(const char* name, void (*kernel)(Parameters...), const Launch& how,
            Arguments&&... arguments) {
    if (how.blocks.x == 0 || how.blocks.y == 0 || how.blocks.z == 0) return;
    constexpr size_t without_asking = 40 * 1024;  // 48 KB less static shared memory
    if (how.shared_bytes > without_asking)
        check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                   static_cast<int>(how.shared_bytes)),
              name);
    kernel<<<how.blocks, how.threads, how.shared_bytes, how.stream>>>(
        std::forward<Arguments>(arguments)...);
    check_launch(name);
}

template <class Count>
constexpr Count divide_up(Count a, Count b) {
    return (a + b - 1) / b;
}

}  // namespace pgwarp::gpu
