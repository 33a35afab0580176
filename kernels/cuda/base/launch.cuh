// Kernel launches with error checks.
#pragma once

#include "kernels/cuda/base/stream.h"

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
    Turn turn;
    unsigned cluster = 1;  // blocks that run together and see each other's shared memory
};

// Every thread of a kernel that may start early calls this first, before it reads or writes memory
// and before any return: a kernel that ends without the call would let the next one start too
// early.
__device__ __forceinline__ void wait_for_kernels_before() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    cudaGridDependencySynchronize();
    // The next kernel may start its blocks; it waits for the end of this one in turn.
    cudaTriggerProgrammaticLaunchCompletion();
#endif
}

// Whether the current device runs code compiled for 9.0 or later: kernels may start early then, and
// have clusters. Older code would not wait for the kernels before.
inline bool has_hopper_code() {
    const int capability = current_capability();
    for (const int compiled : {__CUDA_ARCH_LIST__})
        if (compiled >= 900 && compiled <= capability) return true;
    return false;
}

template <class... Parameters, class... Arguments>
void launch(const char* name, void (*kernel)(Parameters...), const Launch& how,
            Arguments&&... arguments) {
    if (how.blocks.x == 0 || how.blocks.y == 0 || how.blocks.z == 0) return;
    constexpr size_t without_asking = 40 * 1024;  // 48 KB less static shared memory
    if (how.shared_bytes > without_asking)
        check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                   static_cast<int>(how.shared_bytes)),
              name);
    const bool early = how.turn.start == Start::early && has_hopper_code();
    if (early || how.cluster > 1) {
        cudaLaunchAttribute attributes[2] = {};
        cudaLaunchConfig_t config{};
        config.gridDim = how.blocks;
        config.blockDim = how.threads;
        config.dynamicSmemBytes = how.shared_bytes;
        config.stream = how.turn.stream;
        config.attrs = attributes;
        if (early) {
            cudaLaunchAttribute& attribute = attributes[config.numAttrs++];
            attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
            attribute.val.programmaticStreamSerializationAllowed = 1;
        }
        if (how.cluster > 1) {
            cudaLaunchAttribute& attribute = attributes[config.numAttrs++];
            attribute.id = cudaLaunchAttributeClusterDimension;
            attribute.val.clusterDim = {how.cluster, 1, 1};
        }
        check(cudaLaunchKernelEx(&config, kernel, Parameters(arguments)...), name);
        return;
    }
    kernel<<<how.blocks, how.threads, how.shared_bytes, how.turn.stream>>>(
        std::forward<Arguments>(arguments)...);
    check_launch(name);
}

template <class Count>
constexpr Count divide_up(Count a, Count b) {
    return (a + b - 1) / b;
}

}  // namespace pgwarp::gpu
