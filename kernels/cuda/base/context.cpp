#include "kernels/cuda/base/context.h"

#include "kernels/device.h"

#include <algorithm>
#include <cstring>
#include <string>

namespace pgwarp::gpu {

namespace {

size_t budget_of(const DeviceOptions& options) {
    use_device(options.device);
    size_t free = 0, total = 0;
    check(cudaMemGetInfo(&free, &total), "cudaMemGetInfo");
    // Leave a tenth, at least 512 MB, to the CUDA context, cuBLAS and modules that load lazily.
    const size_t rest = std::max(total / 10, size_t{512} << 20);
    const size_t most = free - std::min(free, rest);
    const size_t share = options.build_share == 0 ? total / 4 : options.build_share;
    const auto sharers = static_cast<size_t>(std::max(options.sharers, 1));
    if (options.charge) return share / sharers;
    if (options.memory_budget != 0) return options.memory_budget;
    const size_t budget = most - std::min(most, share);
    if (sharers == 1) return budget;
    // A share of all memory: how much is free depends on what other workers have taken by now.
    const size_t all = total - std::min(total, rest + share);
    return std::min(budget, all / sharers);
}

int attribute(cudaDeviceAttr which, int device) {
    int value = 0;
    check(cudaDeviceGetAttribute(&value, which, device), "cudaDeviceGetAttribute");
    return value;
}

}  // namespace

Context::Context(const DeviceOptions& options)
    : device(options.device),
      interrupts(options.interrupts),
      memory(budget_of(options), options.charge) {
    cudaDeviceProp properties;
    check(cudaGetDeviceProperties(&properties, device), "cudaGetDeviceProperties");
    if (properties.major < 8)
        throw DeviceFailure(std::string("device ") + properties.name +
                                " is too old: compute capability 8.0 or later is needed",
                            false);
    static_assert(sizeof(name) == sizeof(properties.name));
    std::memcpy(name, properties.name, sizeof(name));
    processors = static_cast<uint32_t>(attribute(cudaDevAttrMultiProcessorCount, device));
    block_shared_bytes =
        static_cast<size_t>(attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin, device));
    scratch_budget = options.scratch_budget == 0 ? memory.use().budget / 4 : options.scratch_budget;
}

size_t Context::scratch() const {
    return std::min(scratch_budget, memory.available());
}

}  // namespace pgwarp::gpu
