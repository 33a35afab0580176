#include <csignal>
#include <cstring>
#include <memory>

#include "kernels/fallback_executor.h"
#include "kernels/host_device.h"
#include "extension/build_executor.h"
#include "extension/device_library.h"
#include "extension/guard.h"
#include "extension/settings.h"

extern "C" {
#include "miscadmin.h"
}

namespace pgwarp {

// Ends from the last to the first.
struct BuildDevice {
    std::unique_ptr<Device> device;
    std::unique_ptr<Executor> executor;
    FallbackExecutor* fallback;  // the executor, where a device may fail
};

namespace {

// Starting a device takes about as long as this much work does on a CPU.
constexpr double least_work_for_a_device = 1e10;
// Of a device's memory: the model, a sample and a few blocks of rows need no more, and searches
// have the rest.
constexpr size_t most_device_memory = size_t{4} << 30;
constexpr size_t host_memory = size_t{1} << 30;

// The device of pgwarp.devices, or null with the reason.
Device* open_device(int threads, char* error, size_t error_size) {
    const char* devices = settings.devices;
    if (strcmp(devices, "none") == 0) {
        strlcpy(error, "pgwarp.devices is none", error_size);
        return nullptr;
    }
    if (strcmp(devices, "host") == 0)
        return make_host_device(threads, host_memory, &QueryCancelPending, &ProcDiePending)
            .release();
    int numbers[most_devices];
    DeviceOptions options;
    options.device = parse_devices(devices, numbers) > 0 ? numbers[0] : 0;
    options.memory_budget = most_device_memory;
    if (settings.device_memory > 0)
        options.memory_budget =
            Min(options.memory_budget, static_cast<size_t>(settings.device_memory) << 20);
    options.interrupt = &QueryCancelPending;
    options.other_interrupt = &ProcDiePending;
    options.leave = true;
    return open_cuda_device(options, error, error_size);
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
    // The host stands for a device in tests, which ask for it, or for its failures.
    if (strcmp(settings.devices, "host") == 0)
        return settings.fault != static_cast<int>(Fault::none);
    return work >= least_work_for_a_device && strcmp(settings.devices, "none") != 0 &&
           cuda_library_is_there();
}

}  // namespace

BuildExecutor open_build_executor(const char* unfit, double work, int threads) {
    Owned<BuildDevice>* owned = owned_by<BuildDevice>(CurrentMemoryContext);
    const auto make_cpu = [threads] {
        return make_cpu_executor(threads, &QueryCancelPending, &ProcDiePending);
    };
    char error[256] = "";
    if (unfit && settings.build_executor == static_cast<int>(BuildExecutorChoice::gpu))
        ereport(ERROR, (errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
                        errmsg("pgwarp.build_executor is gpu, but %s", unfit),
                        errhint("Set pgwarp.build_executor to auto or cpu.")));
    if (!unfit && wants_device(work)) {
        guarded([&] { owned->object = new BuildDevice{}; });
        // Threads of the driver must not take this process's signals.
        sigset_t all, before;
        sigfillset(&all);
        pthread_sigmask(SIG_SETMASK, &all, &before);
        BuildDevice* build = owned->object;
        try {
            build->device.reset(open_device(threads, error, sizeof(error)));
            if (build->device) {
                build->device = make_failing_device(std::move(build->device), &settings.fault,
                                                    settings.fault_after);
                build->executor = build->device->make_executor();
            }
        } catch (const std::exception& failure) {
            strlcpy(error, failure.what(), sizeof(error));
        } catch (...) {
            strlcpy(error, "unknown exception", sizeof(error));
        }
        pthread_sigmask(SIG_SETMASK, &before, nullptr);
        const bool must = settings.build_executor == static_cast<int>(BuildExecutorChoice::gpu);
        if (!build->executor) {
            build->device.reset();
            if (must)
                ereport(ERROR,
                        (errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
                         errmsg("pgwarp.build_executor is gpu, but there is no device: %s", error),
                         errhint("Set pgwarp.build_executor to auto or cpu.")));
            ereport(DEBUG1, (errmsg_internal("build on the CPU: %s", error)));
        } else {
            guarded([&] {
                if (must) return;
                auto fallback = std::make_unique<FallbackExecutor>(
                    std::move(build->executor), make_cpu,
                    [threads] { return make_cpu_executor(threads, nullptr); });
                build->fallback = fallback.get();
                build->executor = std::move(fallback);
            });
            return {build->executor.get(), true, build};
        }
    }
    guarded([&] {
        if (!owned->object) owned->object = new BuildDevice{};
        owned->object->executor = make_cpu();
    });
    return {owned->object->executor.get(), false, owned->object};
}

void close_build_executor(BuildExecutor* executor) {
    BuildDevice* build = executor->owned;
    char failure[256] = "";
    if (build->fallback) strlcpy(failure, build->fallback->failure().c_str(), sizeof(failure));
    guarded([&] {
        build->fallback = nullptr;
        build->executor.reset();
        build->device.reset();
    });
    executor->executor = nullptr;
    if (failure[0] != '\0')
        ereport(WARNING, (errmsg("the device failed, and the CPU did the rest: %s", failure)));
}

}  // namespace pgwarp
