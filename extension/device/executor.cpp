#include <cstring>
#include <memory>
#include <utility>

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
        begin_session_device(DeviceUse::executor, !unfit && wants_device(work), threads);
    executor.threads = threads;
    return executor;
}

void finish_build_executor(BuildExecutor* executor) {
    const int threads = executor->threads;
    const auto make_cpu = [threads] { return make_cpu_executor(threads, query_interrupts()); };
    SessionDevice* session = executor->session;
    executor->device = has_opened(session);
    guarded([&] {
        if (!executor->device) {
            session->executor = make_cpu();
        } else if (!must_use_device()) {
            auto fallback = std::make_unique<FallbackExecutor>(
                std::move(session->executor), make_cpu,
                [threads] { return make_cpu_executor(threads, {}); });
            executor->fallback = fallback.get();
            session->executor = std::move(fallback);
        }
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
    if (executor->fallback)
        strlcpy(failure, executor->fallback->failure().c_str(), sizeof(failure));
    close_session_device(executor->session, failure[0] == '\0');
    executor->executor = nullptr;
    executor->fallback = nullptr;
    if (failure[0] != '\0') warn_of_device(failure);
}

// --- work with a CPU path of its own

DeviceWork* begin_device_work(double work, int threads) {
    if (!wants_device(work)) return nullptr;
    DeviceWork* device = static_cast<DeviceWork*>(palloc0(sizeof(DeviceWork)));
    device->session = begin_session_device(DeviceUse::executor, true, threads);
    return device;
}

bool is_open(DeviceWork* device) {
    if (!device->executor && has_opened(device->session))
        device->executor = device->session->executor.get();
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

Size device_memory_of(const DeviceWork* device) {
    return device->session->device->memory().budget;
}

void close_device_work(DeviceWork* device) {
    close_session_device(device->session, !device->failed);
    device->executor = nullptr;
    if (!device->failed) return;
    const char* hint = build_memory_hint(device->failure);
    if (must_use_device())
        ereport(ERROR, (errcode(ERRCODE_EXTERNAL_ROUTINE_EXCEPTION), errmsg("%s", device->failure),
                        errhint("%s", hint ? hint : "Set pgwarp.build_executor to auto or cpu.")));
    warn_of_device(device->failure);
}

}  // namespace pgwarp
