#include <csignal>
#include <cstring>
#include <memory>
#include <thread>
#include <utility>

#include "kernels/device_choice.h"
#include "kernels/fallback_executor.h"
#include "kernels/failing_device.h"
#include "kernels/stand_in_device.h"
#include "extension/device/executor.h"
#include "extension/device/build_memory.h"
#include "extension/device/library.h"
#include "extension/guard.h"
#include "extension/settings.h"

extern "C" {
#include "miscadmin.h"
#include "storage/ipc.h"
}

namespace pgwarp {

// Members are destroyed in reverse order: the executor ends before its device.
struct BuildDevice {
    std::unique_ptr<Device> device;
    std::unique_ptr<Executor> executor;
    FallbackExecutor* fallback =
        nullptr;           // `executor`, where the CPU takes over from a failed device
    bool lasting = false;  // a device was requested; it may be kept for the next call
    int threads = 1;
    std::thread opening;
    char error[256] = "";

    ~BuildDevice() { wait(); }
    void wait() {
        if (opening.joinable()) opening.join();
    }
};

namespace {

// In multiplications: opening a device takes about as long as this much work takes on a CPU.
constexpr double least_work_for_a_device = 1e10;
// The device that an earlier call of this session left open. Never destroyed: when the process
// exits, the driver may be gone before static destructors run.
Device* kept_device = nullptr;
int kept_build_memory = 0;  // pgwarp.build_memory when it was opened

// Closing a device takes a tenth of a second: this thread does it while the session continues.
std::thread closing;

void wait_for_closing() {
    if (closing.joinable()) closing.join();
}

// Runs `function` in a thread, or synchronously where no thread can be created. Either way all
// signals are blocked: the driver's threads inherit the mask and must not receive this process's
// signals.
template <typename Function>
void run_in_thread(std::thread* thread, Function function) {
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    bool started = true;
    try {
        *thread = std::thread(function);
    } catch (...) {
        started = false;
    }
    if (!started) function();
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

// Runs in its own thread: must call nothing of PostgreSQL that allocates or reports an error.
void open_in_thread(BuildDevice* build) {
    try {
        build->device = open_device(build->threads, build->error, sizeof(build->error));
        if (build->device) build->executor = build->device->make_executor();
    } catch (const std::exception& failure) {
        strlcpy(build->error, failure.what(), sizeof(build->error));
    } catch (...) {
        strlcpy(build->error, "unknown exception", sizeof(build->error));
    }
}

void start_opening(BuildDevice* build) {
    if (kept_device) {
        keep_one_device_less();
        build->device.reset(std::exchange(kept_device, nullptr));
        if (kept_build_memory == settings.build_memory) try {
                build->executor = build->device->make_executor();
                return;
            } catch (...) {
                // Open a new device below.
            }
        build->device.reset();
    }
    wait_for_closing();
    run_in_thread(&build->opening, [build] { open_in_thread(build); });
}

bool must_be_a_device() {
    return settings.build_executor == static_cast<int>(BuildExecutorChoice::gpu);
}

void refuse(const char* why) {
    ereport(ERROR, (errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
                    errmsg("pgwarp.build_executor is gpu, but there is no device: %s", why),
                    errhint("Set pgwarp.build_executor to auto or cpu.")));
}

BuildDevice* begin_opening(double work, int threads) {
    build_charge();
    Owned<BuildDevice>* owned = owned_by<BuildDevice>(CurrentMemoryContext);
    guarded([&] {
        owned->object = new BuildDevice{};
        owned->object->threads = threads;
        if (wants_device(work)) {
            owned->object->lasting = true;
            start_opening(owned->object);
        }
    });
    return owned->object;
}

// Waits for the opening thread. False: no device was requested, or opening failed; the latter is an
// error where pgwarp.build_executor is gpu.
bool has_opened(BuildDevice* build) {
    build->wait();
    if (build->executor) return true;
    if (!build->lasting) return false;
    build->lasting = false;
    build->device.reset();
    if (must_be_a_device()) refuse(build->error);
    ereport(DEBUG1, (errmsg_internal("build on the CPU: %s", build->error)));
    return false;
}

// The process must not exit while its closing thread is inside the driver.
void wait_at_exit() {
    static bool registered = false;
    if (!registered) on_proc_exit([](int, Datum) { wait_for_closing(); }, Datum{0});
    registered = true;
}

void end_device(std::unique_ptr<Device> device) {
    wait_for_closing();
    Device* ending = device.release();
    run_in_thread(&closing, [ending] { delete ending; });
}

// Closes the executor. Keeps the device for the session's next call where it is sound and
// pgwarp.keep_device allows it; else closes the device, too.
void let_go(BuildDevice* build, bool sound) {
    wait_at_exit();
    guarded([&] {
        build->wait();
        build->fallback = nullptr;
        build->executor.reset();
        if (build->device && sound && settings.keep_device && !kept_device && build->lasting &&
            keep_one_device(*build->device)) {
            build->device->trim(0);
            kept_device = build->device.release();
            kept_build_memory = settings.build_memory;
        }
        if (build->device) end_device(std::move(build->device));
    });
}

}  // namespace

std::unique_ptr<Device> open_device(int threads, char* error, size_t error_size) {
    std::unique_ptr<Device> device;
    const char* devices = settings.devices;
    if (strcmp(devices, "none") == 0) {
        strlcpy(error, "pgwarp.devices is none", error_size);
    } else if (devices_are_hosts()) {
        device =
            make_stand_in_device(threads, host_build_memory(), query_interrupts(), build_charge());
    } else {
        const auto open = [](int number, OpenError* why) {
            DeviceOptions options;
            options.device = number;
            options.build_share = build_memory();
            options.charge = build_charge();
            options.interrupts = query_interrupts();
            options.leave = true;
            return std::unique_ptr<Device>(open_cuda_device(options, why));
        };
        int numbers[most_devices];
        const int count = parse_devices(devices, numbers);
        OpenedDevices opened = count > 0
                                   ? open_devices({numbers, static_cast<size_t>(count)}, 1, open)
                                   : open_all_devices(1, open);
        if (!opened.devices.empty())
            device = std::move(opened.devices[0].device);
        else
            strlcpy(error, opened.failures[0].c_str(), error_size);
    }
    if (!device) return nullptr;
    return make_failing_device(std::move(device), &settings.fault, settings.fault_after);
}

void warn_of_device(const char* failure) {
    const char* hint = build_memory_hint(failure);
    ereport(WARNING, (errmsg("the device failed, and the CPU did the rest: %s", failure),
                      hint ? errhint("%s", hint) : 0));
}

bool wants_device(double work) {
    switch (static_cast<BuildExecutorChoice>(settings.build_executor)) {
        case BuildExecutorChoice::cpu:
            return false;
        case BuildExecutorChoice::gpu:
            return true;
        case BuildExecutorChoice::automatic:
            break;
    }
    // Only tests let the host stand in for a device: they set pgwarp.build_executor to gpu, or
    // inject a fault.
    if (devices_are_hosts()) return settings.fault != static_cast<int>(Fault::none);
    return work >= least_work_for_a_device && strcmp(settings.devices, "none") != 0 &&
           cuda_library_is_there();
}

BuildExecutor begin_build_executor(const char* unfit, double work, int threads) {
    if (unfit && must_be_a_device())
        ereport(ERROR, (errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
                        errmsg("pgwarp.build_executor is gpu, but %s", unfit),
                        errhint("Set pgwarp.build_executor to auto or cpu.")));
    return {nullptr, false, unfit ? nullptr : begin_opening(work, threads), threads};
}

void finish_build_executor(BuildExecutor* executor) {
    const int threads = executor->threads;
    const auto make_cpu = [threads] { return make_cpu_executor(threads, query_interrupts()); };
    BuildDevice* build = executor->owned;
    executor->device = build && has_opened(build);
    if (!build) {
        Owned<BuildDevice>* owned = owned_by<BuildDevice>(CurrentMemoryContext);
        guarded([&] { owned->object = new BuildDevice{}; });
        build = executor->owned = owned->object;
    }
    guarded([&] {
        if (!executor->device) {
            build->executor = make_cpu();
        } else if (!must_be_a_device()) {
            auto fallback = std::make_unique<FallbackExecutor>(
                std::move(build->executor), make_cpu,
                [threads] { return make_cpu_executor(threads, {}); });
            build->fallback = fallback.get();
            build->executor = std::move(fallback);
        }
    });
    executor->executor = build->executor.get();
}

BuildExecutor open_build_executor(const char* unfit, double work, int threads) {
    BuildExecutor executor = begin_build_executor(unfit, work, threads);
    finish_build_executor(&executor);
    return executor;
}

void close_build_executor(BuildExecutor* executor) {
    BuildDevice* build = executor->owned;
    char failure[256] = "";
    if (build->fallback) strlcpy(failure, build->fallback->failure().c_str(), sizeof(failure));
    let_go(build, failure[0] == '\0');
    executor->executor = nullptr;
    if (failure[0] != '\0') warn_of_device(failure);
}

// --- work with a CPU path of its own

DeviceWork* begin_device_work(double work, int threads) {
    if (!wants_device(work)) return nullptr;
    BuildDevice* build = begin_opening(work, threads);
    DeviceWork* device = static_cast<DeviceWork*>(palloc0(sizeof(DeviceWork)));
    device->build = {nullptr, true, build, threads};
    return device;
}

bool is_open(DeviceWork* device) {
    BuildDevice* build = device->build.owned;
    if (!device->executor && has_opened(build))
        device->executor = device->build.executor = build->executor.get();
    return device->executor != nullptr;
}

DeviceWork* open_device_work(double work, int threads) {
    DeviceWork* device = begin_device_work(work, threads);
    return device && is_open(device) ? device : nullptr;
}

bool run_on_device(DeviceWork* device, void (*work)(void* state, Executor& executor), void* state) {
    if (device->failed) return false;
    guarded_interruptibly([&] {
        try {
            work(state, *device->executor);
        } catch (const DeviceFailure& failure) {
            device->failed = true;
            strlcpy(device->failure, failure.what(), sizeof(device->failure));
        } catch (const OutOfDeviceMemory& failure) {
            device->failed = true;
            strlcpy(device->failure, failure.what(), sizeof(device->failure));
        } catch (const OutOfHostMemory& failure) {
            device->failed = true;
            strlcpy(device->failure, failure.what(), sizeof(device->failure));
        }
    });
    return !device->failed;
}

Size device_memory_of(const DeviceWork* device) {
    return device->build.owned->device->memory().budget;
}

bool must_use_device() {
    return must_be_a_device();
}

void close_device_work(DeviceWork* device) {
    let_go(device->build.owned, !device->failed);
    device->executor = nullptr;
    if (!device->failed) return;
    const char* hint = build_memory_hint(device->failure);
    if (must_be_a_device())
        ereport(ERROR, (errcode(ERRCODE_EXTERNAL_ROUTINE_EXCEPTION), errmsg("%s", device->failure),
                        errhint("%s", hint ? hint : "Set pgwarp.build_executor to auto or cpu.")));
    warn_of_device(device->failure);
}

}  // namespace pgwarp
