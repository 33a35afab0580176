#include <algorithm>
#include <csignal>
#include <cstring>
#include <utility>

#include "kernels/device_choice.h"
#include "kernels/failing_device.h"
#include "kernels/numa.h"
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

// In multiplications: opening another device takes as long as this much work on the first.
constexpr double min_work_for_another = 1e12;

using Devices = std::vector<std::unique_ptr<Device>>;

// The devices that an earlier call of this session left open. Never destroyed: when the process
// exits, the driver may be gone before static destructors run.
Devices* kept_devices = nullptr;
int kept_build_memory = 0;  // pgwarp.build_memory when they were opened
int kept_most = 0;          // and how many were wanted

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

// How often pgwarp.devices names a device: its parts share the memory.
int sharers_of(const int* numbers, int count, int number) {
    return std::max<int>(static_cast<int>(std::count(numbers, numbers + count, number)), 1);
}

std::unique_ptr<Device> open_host(int place, int sharers, int threads) {
    return make_stand_in_device(threads, host_build_memory() / static_cast<size_t>(sharers),
                                query_interrupts(), build_charge(place));
}

std::unique_ptr<Device> open_gpu(int place, int number, int sharers, OpenError* why) {
    DeviceOptions options;
    options.device = number;
    options.build_share = build_memory();
    options.sharers = sharers;
    options.charge = build_charge(place);
    options.interrupts = query_interrupts();
    options.leave = true;
    options.near = true;
    return std::unique_ptr<Device>(open_cuda_device(options, why));
}

// Opens up to `most` devices of pgwarp.devices; the reason is in `error` where there are none. May
// throw; calls nothing of PostgreSQL that allocates or reports an error.
Devices open_devices_of_session(size_t most, int threads, char* error, size_t error_size) {
    Devices devices;
    if (strcmp(settings.devices, "none") == 0) {
        strlcpy(error, "pgwarp.devices is none", error_size);
        return devices;
    }
    int numbers[most_devices];
    const int count = parse_devices(settings.devices, numbers);
    int place = 0;  // in pgwarp.devices; every place is tried once, in order
    const auto open = [&](int number, OpenError* why) {
        const int here = place++;
        const KeptProcessors processors;
        const int sharers = sharers_of(numbers, count, number);
        auto device = number == host_device ? open_host(here, sharers, threads)
                                            : open_gpu(here, number, sharers, why);
        const bool fails = settings.fault_device < 0 || settings.fault_device == here;
        return device && fails
                   ? make_failing_device(std::move(device), &settings.fault, settings.fault_after)
                   : std::move(device);
    };
    OpenedDevices opened = count > 0
                               ? open_devices({numbers, static_cast<size_t>(count)}, most, open)
                               : open_all_devices(std::min<size_t>(most, most_devices), open);
    for (OpenedDevice& device : opened.devices) devices.push_back(std::move(device.device));
    if (devices.empty()) strlcpy(error, opened.failures[0].c_str(), error_size);
    return devices;
}

// Makes the executor or builder of each device. One that fails at that is left out; throws where
// all do.
void make_workers(SessionDevice* session, Devices devices) {
    for (std::unique_ptr<Device>& device : devices) {
        OpenDeviceOfSession open;
        open.device = std::move(device);
        const bool last = session->devices.empty() && &device == &devices.back();
        // Threads that copy rows for the device run near it.
        const KeptProcessors processors;
        run_near(open.device->numa_node());
        const auto make = [&] {
            if (session->use == DeviceUse::executor)
                open.executor = open.device->make_executor();
            else
                open.builder = open.device->make_graph_builder();
        };
        if (last)
            make();
        else if (!ran_on_device(make, [](const char*) {}))
            continue;
        session->devices.push_back(std::move(open));
    }
}

// Runs in its own thread.
void open_in_thread(SessionDevice* session) {
    const Thrown thrown = caught(session->error, sizeof(session->error), [&] {
        make_workers(session,
                     open_devices_of_session(static_cast<size_t>(session->most), session->threads,
                                             session->error, sizeof(session->error)));
    });
    if (thrown != Thrown::nothing) session->devices.clear();
}

// A device that was opened before a test injects a fault does not have it.
bool may_keep() {
    return settings.fault == static_cast<int>(Fault::none);
}

// Takes the devices that the session has kept. False: there are none for this use.
bool took_kept_devices(SessionDevice* session) {
    if (!kept_devices || !may_keep()) return false;
    keep_one_device_less();
    Devices devices = std::move(*kept_devices);
    delete std::exchange(kept_devices, nullptr);
    if (kept_build_memory == settings.build_memory && kept_most >= session->most &&
        caught(session->error, sizeof(session->error),
               [&] { make_workers(session, std::move(devices)); }) == Thrown::nothing)
        return true;
    session->devices.clear();
    return false;
}

// The process must not exit while its closing thread is inside the driver.
void wait_at_exit() {
    static bool registered = false;
    if (!registered) on_proc_exit([](int, Datum) { wait_for_closing(); }, Datum{0});
    registered = true;
}

void end_devices(Devices devices) {
    wait_for_closing();
    auto* ending = new Devices(std::move(devices));
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

int devices_for(double work) {
    if (!wants_device(work)) return 0;
    int numbers[most_devices];
    const int named = parse_devices(settings.devices, numbers);
    const int all = named > 0 ? named : std::clamp(count_gpus(), 1, most_devices);
    // Opening a host takes no time, and only tests have several.
    if (must_use_device() || devices_are_hosts()) return all;
    return static_cast<int>(std::clamp<double>(work / min_work_for_another, 1, all));
}

SessionDevice* begin_session_device(DeviceUse use, int most, int threads) {
    if (most > 0) build_charge(0);
    Owned<SessionDevice>* owned = owned_by<SessionDevice>(CurrentMemoryContext);
    guarded([&] {
        owned->object = new SessionDevice{};
        SessionDevice* session = owned->object;
        session->use = use;
        session->threads = threads;
        session->wanted = most > 0;
        session->most = most;
        if (most == 0 || took_kept_devices(session)) return;
        wait_for_closing();
        run_in_thread(&session->opening, [session] { open_in_thread(session); });
    });
    return owned->object;
}

bool has_opened(SessionDevice* session) {
    session->wait();
    if (!session->devices.empty()) return true;
    if (!session->wanted) return false;
    session->wanted = false;
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
        Devices devices;
        for (OpenDeviceOfSession& open : session->devices) {
            open.executor.reset();
            open.builder.reset();
            if (open.device) devices.push_back(std::move(open.device));
        }
        session->devices.clear();
        if (devices.empty()) return;
        if (sound && may_keep() && !kept_devices && keep_one_device(*devices[0])) {
            for (const auto& device : devices) device->trim(0);
            kept_devices = new Devices(std::move(devices));
            kept_build_memory = settings.build_memory;
            kept_most = session->most;
        } else {
            end_devices(std::move(devices));
        }
    });
}

void warn_of_device(const char* failure) {
    const char* hint = build_memory_hint(failure);
    ereport(WARNING, (errmsg("the device failed, and the CPU did the rest: %s", failure),
                      hint ? errhint("%s", hint) : 0));
}

void warn_of_one_device(const char* failure) {
    const char* hint = build_memory_hint(failure);
    ereport(WARNING, (errmsg("a device failed, and others did its work: %s", failure),
                      hint ? errhint("%s", hint) : 0));
}

}  // namespace pgwarp
