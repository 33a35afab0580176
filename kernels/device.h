// A device beside the CPU, as pgwarp_cuda.so provides it. This header needs none of the vendor's.
//
// The caller opens the library with dlopen(); its one entry is pgwarp_open_device. Destroy objects
// made by a device before the device, and all of them before dlclose(). Functions throw as
// executor.h says, and the types below, which tell a caller what to do next.
#pragma once

#include "kernels/executor.h"
#include "kernels/knn_graph.h"
#include "kernels/list_store.h"
#include "kernels/memory_charge.h"

#include <memory>
#include <new>
#include <stdexcept>
#include <string>

namespace pgwarp {

// The budget, or the device itself, is exhausted. Existing objects stay valid, and smaller requests
// may succeed.
struct OutOfDeviceMemory : std::runtime_error {
    OutOfDeviceMemory(size_t wanted_bytes, size_t used_bytes, size_t budget_bytes)
        : std::runtime_error("out of device memory: " + std::to_string(wanted_bytes) +
                             " bytes wanted, " + std::to_string(used_bytes) + " of " +
                             std::to_string(budget_bytes) + " in use"),
          wanted(wanted_bytes),
          used(used_bytes),
          budget(budget_bytes) {}
    size_t wanted, used, budget;
};

// The host has no memory that a device can access. The device is not at fault; a caller that can
// work without a device should.
struct OutOfHostMemory : std::bad_alloc {
    explicit OutOfHostMemory(size_t wanted_bytes)
        : message_("out of host memory for the device: " + std::to_string(wanted_bytes) +
                   " bytes wanted") {}
    const char* what() const noexcept override { return message_.c_str(); }

  private:
    std::string message_;
};

// The device failed. With `lost`, every later call of this process fails too: only a new process
// helps.
struct DeviceFailure : std::runtime_error {
    DeviceFailure(const std::string& message, bool is_lost)
        : std::runtime_error(message), lost(is_lost) {}
    bool lost;
};

// Calls work(). Where the device fails, or memory for it runs out, calls give_up(message) and
// returns false: the caller can do without the device. Other exceptions pass.
template <typename Work, typename GiveUp>
bool ran_on_device(Work&& work, GiveUp&& give_up) {
    try {
        work();
        return true;
    } catch (const DeviceFailure& failure) {
        give_up(failure.what());
    } catch (const OutOfDeviceMemory& failure) {
        give_up(failure.what());
    } catch (const OutOfHostMemory& failure) {
        give_up(failure.what());
    }
    return false;
}

struct DeviceOptions {
    int device = 0;
    // Bytes that the device's objects may take together; 0: most of the free memory, less the share
    // of builds.
    size_t memory_budget = 0;
    size_t scratch_budget = 0;  // bytes of memory_budget for one running operation; 0: a quarter
    // Bytes of the device that builds of all processes may take together; 0: a quarter of the
    // device.
    size_t build_share = 0;
    // Devices made of this one, this one included, that each take such a budget: where
    // memory_budget is 0, each gets its part, and so it does of the share of builds.
    int sharers = 1;
    // Where not null, the device is for a build: the share is its budget, and its memory is charged
    // here.
    MemoryCharge* charge = nullptr;
    // Polled by executors and graph builders, as on the CPU.
    Interrupts interrupts;
    // Reset the device (cudaDeviceReset) when the process's last open device is destroyed: the
    // driver's context ends, with all memory that the process has there.
    bool leave = false;
    // The calling thread, and those it starts, run near the device from then on (numa.h).
    bool near = false;
};

// Of centroids and codebook.
inline size_t model_floats(const QuantizerShape& shape) {
    return size_t{shape.lists} * shape.dims + size_t{shape.codebook_rows()} * codewords;
}

struct DeviceMemoryUse {
    size_t used;      // by lists, data sets and scratch space
    size_t reserved;  // taken from the device, used or not
    size_t empty;     // part of `reserved` that trim() can release
    size_t budget;
};

class Device {
  public:
    virtual ~Device() = default;
    virtual const char* name() const noexcept = 0;
    virtual DeviceMemoryUse memory() const noexcept = 0;
    // The node of processors and memory near it (numa.h); -1: all are, or unknown.
    virtual int numa_node() const noexcept { return -1; }
    // Whether work of different processes never runs at once on it.
    virtual bool takes_turns() const noexcept { return false; }
    virtual std::unique_ptr<Executor> make_executor() = 0;
    // Where one of its builders throws DeviceFailure or OutOfDeviceMemory, the caller's lists are
    // unchanged.
    virtual std::unique_ptr<GraphBuilder> make_graph_builder() = 0;
    // Releases unused memory, but keeps about `keep` bytes of it. Memory that a batch in flight may
    // read counts as used.
    virtual void trim(size_t /*keep*/) noexcept {}
    // What a store without lists takes of the device's memory, at least.
    virtual size_t store_bytes(const QuantizerShape& shape) const noexcept {
        return model_floats(shape) * sizeof(float);
    }
    // Copies the model. `attributes`: those of the lists' entries.
    virtual std::unique_ptr<ListStore> make_list_store(const Quantizer& quantizer,
                                                       const AttributeLayout& attributes) = 0;
};

enum class OpenFailure : int {
    failed,
    no_such_device,  // nor one with a higher number
    out_of_host_memory,
};
struct OpenError {
    OpenFailure failure = OpenFailure::failed;
    char message[256] = "";
};

// The library's entry: returns a device that the caller deletes, or null with the reason in
// `error`.
using OpenDevice = Device*(const DeviceOptions* options, OpenError* error);
inline constexpr char open_device_symbol[] = "pgwarp_open_device";

}  // namespace pgwarp
