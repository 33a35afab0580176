// Entry point of the CUDA library: pgwarp_open_device().

#include "kernels/device.h"
#include "kernels/numa.h"

#include "kernels/cuda/base/context.h"
#include "kernels/cuda/executor.h"
#include "kernels/cuda/graph/builder.h"
#include "kernels/cuda/lists/list_store.h"

#include <cstdio>
#include <mutex>
#include <set>

namespace pgwarp {

namespace {

// Resets all devices that were left (DeviceOptions::leave) when the process closes its last open
// Device. A Device that another thread is still opening counts as open. Errors of the reset are
// ignored: there is no way to handle them.
class Leaving {
  public:
    explicit Leaving(const DeviceOptions& options) : device_(options.leave ? options.device : -1) {
        const std::lock_guard lock(mutex_);
        ++open_;
    }
    ~Leaving() {
        const std::lock_guard lock(mutex_);
        if (device_ >= 0) left_.insert(device_);
        if (--open_ > 0) return;
        for (const int device : left_)
            if (cudaSetDevice(device) == cudaSuccess) cudaDeviceReset();
        left_.clear();
    }
    Leaving(const Leaving&) = delete;
    Leaving& operator=(const Leaving&) = delete;

  private:
    static inline std::mutex mutex_;
    static inline int open_ = 0;
    static inline std::set<int> left_;
    int device_;
};

// The NUMA node of a device; -1: unknown, or there is only one node.
int node_of(int device) {
    char bus_id[32] = "";
    if (cudaDeviceGetPCIBusId(bus_id, sizeof(bus_id), device) != cudaSuccess) {
        cudaGetLastError();
        return -1;
    }
    return node_of_pci(bus_id);
}

// Whether NVIDIA's Multi-Process Service runs the kernels of this process. Older toolkits cannot
// tell.
bool shared_by_service(int device) noexcept {
#if CUDART_VERSION >= 13000
    int enabled = 0;
    if (cudaDeviceGetAttribute(&enabled, cudaDevAttrMpsEnabled, device) == cudaSuccess)
        return enabled != 0;
    cudaGetLastError();
#else
    static_cast<void>(device);
#endif
    return true;
}

class CudaDevice final : public Device {
  public:
    explicit CudaDevice(const DeviceOptions& options)
        : leaving_(options), node_(node_near(options)), context_(options) {}

    const char* name() const noexcept override { return context_.name; }
    DeviceMemoryUse memory() const noexcept override { return context_.memory.use(); }
    int numa_node() const noexcept override { return node_; }
    bool takes_turns() const noexcept override { return !shared_by_service(context_.device); }
    void trim(size_t keep) noexcept override { context_.memory.trim(keep); }
    std::unique_ptr<Executor> make_executor() override { return gpu::make_executor(context_); }
    std::unique_ptr<GraphBuilder> make_graph_builder() override {
        return gpu::make_graph_builder(context_);
    }
    // Centroids are there as floats and as products need them, the codebook in two orders.
    size_t store_bytes(const QuantizerShape& shape) const noexcept override {
        return 2 * Device::store_bytes(shape);
    }
    std::unique_ptr<ListStore> make_list_store(const Quantizer& quantizer,
                                               const AttributeLayout& attributes) override {
        return gpu::make_list_store(context_, quantizer, attributes);
    }

  private:
    // Before the context: the driver's threads start with that.
    static int node_near(const DeviceOptions& options) {
        const int node = node_of(options.device);
        if (options.near) run_near(node);
        return node;
    }

    Leaving leaving_;  // destroyed after the context
    int node_;
    gpu::Context context_;
};

}  // namespace

extern "C" __attribute__((visibility("default"))) Device* pgwarp_open_device(
    const DeviceOptions* options, OpenError* error) {
    const auto report = [error](OpenFailure failure, const char* message) {
        error->failure = failure;
        std::snprintf(error->message, sizeof(error->message), "%s", message);
        return nullptr;
    };
    // Fails where there is no driver, or no device.
    int count = 0;
    if (const cudaError_t result = cudaGetDeviceCount(&count); result != cudaSuccess) {
        cudaGetLastError();
        return report(OpenFailure::no_such_device, cudaGetErrorString(result));
    }
    if (options->device >= count) return report(OpenFailure::no_such_device, "no such device");
    try {
        return new CudaDevice(*options);
    } catch (const std::bad_alloc& e) {
        return report(OpenFailure::out_of_host_memory, e.what());
    } catch (const std::exception& e) {
        return report(OpenFailure::failed, e.what());
    } catch (...) {
        return report(OpenFailure::failed, "unknown error");
    }
}

// The extension calls the function through this type.
static_assert(std::is_same_v<decltype(pgwarp_open_device), OpenDevice>);

}  // namespace pgwarp
