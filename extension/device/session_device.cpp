#include <csignal>
#include <cstring>
#include <utility>

#include "kernels/device_choice.h"
#include "kernels/failing_device.h"
#include "kernels/stand_in_device.h"
#include "extension/device/session_device.h"
#include "extension/device/build_memory.h"
#include "extension/device/library.h"
#include "extension/guard.h"
#include "extension/settings.h"

extern "C" {
#include "storage/ipc.h"
}

namespace pgwarp {

namespace {

// In multiplications: opening a device takes about as long as this much work takes on a CPU.
constexpr double min_work_for_a_device = 1e10;
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

// Opens a device of pgwarp.devices; null, with the reason in `error`, where that fails. May throw;
// calls nothing of PostgreSQL that allocates or reports an error.
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

void make_worker(SessionDevice* session) {
    switch (session->use) {
        case DeviceUse::executor:
            session->executor = session->device->make_executor();
            return;
        case DeviceUse::graph_builder:
            session->builder = session->device->make_graph_builder();
            return;
    }
}

// Runs in its own thread.
void open_in_thread(SessionDevice* session) {
    caught(session->error, sizeof(session->error), [&] {
        session->device = open_device(session->threads, session->error, sizeof(session->error));
        if (session->device) make_worker(session);
    });
}

// Takes the device that the session has kept. False: there is none for this use.
bool took_kept_device(SessionDevice* session) {
    if (!kept_device) return false;
    keep_one_device_less();
    session->device.reset(std::exchange(kept_device, nullptr));
    if (kept_build_memory == settings.build_memory &&
        caught(session->error, sizeof(session->error), [&] { make_worker(session); }) ==
            Thrown::nothing)
        return true;
    session->device.reset();
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

}  // namespace

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
    return work >= min_work_for_a_device && strcmp(settings.devices, "none") != 0 &&
           cuda_library_is_there();
}

bool must_use_device() {
    return settings.build_executor == static_cast<int>(BuildExecutorChoice::gpu);
}

SessionDevice* begin_session_device(DeviceUse use, bool wanted, int threads) {
    if (wanted) build_charge();
    Owned<SessionDevice>* owned = owned_by<SessionDevice>(CurrentMemoryContext);
    guarded([&] {
        owned->object = new SessionDevice{};
        SessionDevice* session = owned->object;
        session->use = use;
        session->threads = threads;
        session->wanted = wanted;
        if (!wanted || took_kept_device(session)) return;
        wait_for_closing();
        run_in_thread(&session->opening, [session] { open_in_thread(session); });
    });
    return owned->object;
}

bool has_opened(SessionDevice* session) {
    session->wait();
    if (session->executor || session->builder) return true;
    if (!session->wanted) return false;
    session->wanted = false;
    session->device.reset();
    if (must_use_device())
        ereport(ERROR,
                (errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
                 errmsg("pgwarp.build_executor is gpu, but there is no device: %s", session->error),
                 errhint("Set pgwarp.build_executor to auto or cpu.")));
    ereport(DEBUG1, (errmsg_internal("%s on the CPU: %s",
                                     session->use == DeviceUse::executor ? "build" : "graph",
                                     session->error)));
    return false;
}

void close_session_device(SessionDevice* session, bool sound) {
    wait_at_exit();
    guarded([&] {
        session->wait();
        session->executor.reset();
        session->builder.reset();
        if (session->device && sound && settings.keep_device && !kept_device &&
            keep_one_device(*session->device)) {
            session->device->trim(0);
            kept_device = session->device.release();
            kept_build_memory = settings.build_memory;
        }
        if (session->device) end_device(std::move(session->device));
    });
}

void warn_of_device(const char* failure) {
    const char* hint = build_memory_hint(failure);
    ereport(WARNING, (errmsg("the device failed, and the CPU did the rest: %s", failure),
                      hint ? errhint("%s", hint) : 0));
}

}  // namespace pgwarp
