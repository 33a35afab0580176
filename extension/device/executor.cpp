#include <cstring>
#include <memory>
#include <utility>
#include <vector>

#include "kernels/executor_group.h"
#include "kernels/fallback_executor.h"
#include "extension/device/executor.h"
#include "extension/device/build_memory.h"
#include "extension/device/session_device.h"
#include "extension/guard.h"

namespace pgwarp {

BuildExecutor begin_build_executor(const char* unfit, double work, int threads) {
    if (unfit && must_use_device())
        ereport(ERROR, (errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
                        errmsg("pgwarp.build_executor is gpu, but %s", unfit),
                        errhint("Set pgwarp.build_executor to auto or cpu.")));
    BuildExecutor executor = {};
    executor.session =
        begin_session_device(DeviceUse::executor, unfit ? 0 : devices_for(work), threads);
    executor.threads = threads;
    return executor;
}

namespace {

using Executors = std::vector<std::unique_ptr<Executor>>;

Executors take_executors(SessionDevice* session) {
    Executors executors;
    for (OpenDeviceOfSession& open : session->devices)
        executors.push_back(std::move(open.executor));
    return executors;
}

// One executor from those of the session's devices.
std::unique_ptr<Executor> group_executors(Executors executors) {
    return executors.size() == 1 ? std::move(executors[0])
                                 : make_executor_group(std::move(executors));
}

// The CPU takes over from a device that fails; where it must not, another device does.
void add_fallbacks(BuildExecutor* build, Executors* executors) {
    const int threads = build->threads;
    const auto note = [build](FallbackExecutor* fallback) {
        build->fallbacks[build->fallback_count++] = fallback;
    };
    if (must_use_device()) {
        if (executors->size() > 1)
            for (FallbackExecutor* fallback : fall_back_to_each_other(*executors)) note(fallback);
        return;
    }
    for (std::unique_ptr<Executor>& executor : *executors) {
        auto fallback = std::make_unique<FallbackExecutor>(
            std::move(executor),
            [threads] { return make_cpu_executor(threads, query_interrupts()); },
            [threads] { return make_cpu_executor(threads, {}); });
        note(fallback.get());
        executor = std::move(fallback);
    }
}

}  // namespace

void finish_build_executor(BuildExecutor* executor) {
    SessionDevice* session = executor->session;
    executor->device = has_opened(session);
    guarded([&] {
        if (!executor->device) {
            session->executor = make_cpu_executor(executor->threads, query_interrupts());
            return;
        }
        Executors executors = take_executors(session);
        add_fallbacks(executor, &executors);
        session->executor = group_executors(std::move(executors));
    });
    executor->executor = session->executor.get();
}

BuildExecutor open_build_executor(const char* unfit, double work, int threads) {
    BuildExecutor executor = begin_build_executor(unfit, work, threads);
    finish_build_executor(&executor);
    return executor;
}

void close_build_executor(BuildExecutor* executor) {
    char failure[256] = "";
    const bool others = executor->device && !executor->executor->failed();
    for (int i = executor->fallback_count - 1; i >= 0; --i)
        if (executor->fallbacks[i]->failed())
            strlcpy(failure, executor->fallbacks[i]->failure().c_str(), sizeof(failure));
    close_session_device(executor->session, failure[0] == '\0');
    executor->executor = nullptr;
    executor->fallback_count = 0;
    if (failure[0] != '\0') (others ? warn_of_one_device : warn_of_device)(failure);
}

// --- work with a CPU path of its own

DeviceWork* begin_device_work(double work, int threads) {
    const int most = devices_for(work);
    if (most == 0) return nullptr;
    DeviceWork* device = static_cast<DeviceWork*>(palloc0(sizeof(DeviceWork)));
    device->session = begin_session_device(DeviceUse::executor, most, threads);
    return device;
}

bool is_open(DeviceWork* device) {
    if (!device->executor && has_opened(device->session)) {
        guarded(
            [&] { device->session->executor = group_executors(take_executors(device->session)); });
        device->executor = device->session->executor.get();
    }
    return device->executor != nullptr;
}

DeviceWork* open_device_work(double work, int threads) {
    DeviceWork* device = begin_device_work(work, threads);
    return device && is_open(device) ? device : nullptr;
}

bool run_on_device(DeviceWork* device, void (*work)(void* state, Executor& executor), void* state) {
    if (device->failed) return false;
    guarded_interruptibly([&] {
        ran_on_device([&] { work(state, *device->executor); },
                      [&](const char* failure) {
                          device->failed = true;
                          strlcpy(device->failure, failure, sizeof(device->failure));
                      });
    });
    return !device->failed;
}

bool can_go_on(DeviceWork* device) {
    if (!device->failed || !device->executor->drop_failed()) return false;
    device->failed = false;
    device->others = true;
    return true;
}

void close_device_work(DeviceWork* device) {
    close_session_device(device->session, !device->failed && !device->others);
    device->executor = nullptr;
    if (device->others && !device->failed) warn_of_one_device(device->failure);
    if (!device->failed) return;
    const char* hint = build_memory_hint(device->failure);
    if (must_use_device())
        ereport(ERROR, (errcode(ERRCODE_EXTERNAL_ROUTINE_EXCEPTION), errmsg("%s", device->failure),
                        errhint("%s", hint ? hint : "Set pgwarp.build_executor to auto or cpu.")));
    warn_of_device(device->failure);
}

}  // namespace pgwarp
