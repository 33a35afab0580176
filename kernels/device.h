// A device beside the CPU: what pgwarp_cuda.so gives to those who open it. No header of the
// device's own maker is needed here.
//
// The library is opened with dlopen() and has one entry, pgwarp_open_device. Objects made by a
// device are destroyed before it, all of them before dlclose(). Functions throw what executor.h
// says; the types below tell a caller what to do next.
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

// The budget, or the device itself, has no room. Nothing else is wrong: what was there before
// still is, and smaller requests may succeed.
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

// The host has no memory that a device can reach. It says nothing of the device; a caller who can
// do without one should.
struct OutOfHostMemory : std::bad_alloc {
    explicit OutOfHostMemory(size_t wanted_bytes)
        : message_("out of host memory for the device: " + std::to_string(wanted_bytes) +
                   " bytes wanted") {}
    const char* what() const noexcept override { return message_.c_str(); }

  private:
    std::string message_;
};

// The device failed. Where `lost`, every later call of this process will fail too: the way out is
// a new process.
struct DeviceFailure : std::runtime_error {
    DeviceFailure(const std::string& message, bool is_lost)
        : std::runtime_error(message), lost(is_lost) {}
    bool lost;
};

struct DeviceOptions {
    int device = 0;
    // Bytes that the device's objects may take together; 0: most of what is free, but for the share
    // of builds.
    size_t memory_budget = 0;
    size_t scratch_budget = 0;  // bytes of these that one running operation may use; 0: a quarter
    // Bytes of the device that builds of all processes may take together; 0: a quarter of it.
    size_t build_share = 0;
    // Where not null, the device is for a build: the share is its budget, and what it takes is
    // charged here.
    MemoryCharge* charge = nullptr;
    // Polled by executors, as on the CPU.
    const volatile std::sig_atomic_t* interrupt = nullptr;
    const volatile std::sig_atomic_t* other_interrupt = nullptr;
    // With this device all that the process has on it ends: its memory, and the driver's context.
    bool leave = false;
};

struct DeviceMemoryUse {
    size_t used;      // by lists, data sets and scratch space
    size_t reserved;  // taken from the device, used or not
    size_t empty;     // of these: what trim() can give back
    size_t budget;
};

class Device {
  public:
    virtual ~Device() = default;
    virtual const char* name() const noexcept = 0;
    virtual DeviceMemoryUse memory() const noexcept = 0;
    virtual std::unique_ptr<Executor> make_executor() = 0;
    // Where one of its builders throws DeviceFailure or OutOfDeviceMemory, the caller's lists are
    // as they were.
    virtual std::unique_ptr<GraphBuilder> make_graph_builder() = 0;
    // Gives back memory that nothing uses now, but for about `keep` bytes of it. What a batch under
    // way may read is in use.
    virtual void trim(size_t /*keep*/) noexcept {}
    // Copies the model.
    virtual std::unique_ptr<ListStore> make_list_store(const Quantizer& quantizer) = 0;
};

// Why a device was not opened.
enum class OpenFailure : int {
    failed,
    no_such_device,  // nor one with a higher number
    out_of_host_memory,
};
struct OpenError {
    OpenFailure failure = OpenFailure::failed;
    char message[256] = "";
};

// The library's entry: a device, to be deleted by the caller, or null with the reason in `error`.
using OpenDevice = Device*(const DeviceOptions* options, OpenError* error);
inline constexpr char open_device_symbol[] = "pgwarp_open_device";

}  // namespace pgwarp
