// A worker of the service, for one device: collects searches that backends submitted, runs them in
// batches, answers them, and loads the lists that backends send. Batching needs no timer: while one
// batch runs, searches for the next one arrive.
//
// After any failure of the device the answer is "failed", and the backend reads the pages itself.
// If the device is lost for this process, the process exits, and the postmaster starts another.

#include <algorithm>
#include <cstring>
#include <thread>

#include "extension/service/placement.h"
#include "extension/service/worker.h"
#include "extension/settings.h"
#include "extension/util/stopwatch.h"

extern "C" {
#include "miscadmin.h"
#include "pgstat.h"
#include "postmaster/bgworker.h"
#include "postmaster/interrupt.h"
#include "storage/ipc.h"
#include "storage/latch.h"
#include "utils/guc.h"
#include "utils/timestamp.h"
}

namespace pgwarp {

namespace {

// Wakes all waiting backends with the answer "failed", so that they read the pages.
void leave_service(int, Datum) {
    set_worker_state(own_device, WorkerState::down);
    own_device->worker_pid = 0;
    own_device->worker_latch = nullptr;
    empty_held(own_device);
    pg_memory_barrier();
    for (int i = 0; i < service->slots; ++i) {
        SearchSlot* slot = service_slot(own_device, i);
        pg_atomic_write_u32(in_hand(own_device, i), 0);
        change_state(slot, SlotState::submitted, SlotState::running);
        if (pg_atomic_read_u32(&slot->state) == static_cast<uint32>(SlotState::running) ||
            pg_atomic_read_u32(&slot->state) == static_cast<uint32>(SlotState::abandoned)) {
            slot->outcome = MirrorSearch::Outcome::failed;
            slot->found_count = slot->probed_count = 0;
            answer(static_cast<uint32>(i));
        } else if (pg_atomic_read_u32(&slot->state) == static_cast<uint32>(SlotState::done)) {
            // The backend that should have woken this one may have given up.
            wake_backend(backend_of(own_device, i));
        }
    }
    uint32 number;
    while (ring_pop(search_ring(own_device), &number)) {
    }
    for (int i = 0; i < service->slots; ++i)
        pg_atomic_write_u32(&service_slot(own_device, i)->queued, 0);
    pg_atomic_write_u32(&own_device->in_flight, 0);
    free_loads();
}

// Longer than most answers of a GPU take, and than one sleep with its wake-up.
constexpr int most_awake_us = 100;

// For messages where there are several devices: " of device 2 of 3".
const char* of_device() {
    static char text[64] = "";
    if (service->devices > 1)
        snprintf(text, sizeof(text), " of device %d of %d", device_number(own_device) + 1,
                 service->devices);
    return text;
}

// There is no device. If there never was one, the worker exits for good. A device that was lost may
// come back; only a new process can open it, so the worker exits after a minute to be restarted.
[[noreturn]] void end_without_device(const char* message, bool quietly) {
    constexpr long wait_ms = 60 * 1000;
    if (!quietly && strcmp(own_device->why, message) != 0)
        ereport(LOG,
                (errmsg("pgwarp does not serve%s: %s",
                        service->devices > 1 ? psprintf(" from%s", of_device() + 3) : "", message),
                 errdetail("Sessions search the index pages on the CPU.")));
    strlcpy(own_device->why, message, sizeof(own_device->why));
    set_worker_state(own_device, WorkerState::down);
    if (!own_device->served_before) proc_exit(0);
    const TimestampTz start = GetCurrentTimestamp();
    while (!ShutdownRequestPending &&
           !TimestampDifferenceExceeds(start, GetCurrentTimestamp(), wait_ms)) {
        WaitLatch(MyLatch, WL_LATCH_SET | WL_TIMEOUT | WL_EXIT_ON_PM_DEATH, wait_ms,
                  compat_wait_event("PgwarpServiceIdle"));
        ResetLatch(MyLatch);
        CHECK_FOR_INTERRUPTS();
    }
    proc_exit(1);
}

void reload_settings() {
    ConfigReloadPending = false;
    const int fault = settings.fault;
    ProcessConfigFile(PGC_SIGHUP);
    set_own_fault();
    if (settings.fault != fault)
        ereport(LOG, (errmsg("pgwarp.debug_fault is now %s",
                             GetConfigOption("pgwarp.debug_fault", false, false))));
}

void serve(Worker* worker) {
    // After this time without an event, the worker polls batches only every millisecond.
    constexpr double polled_seconds = 0.005;
    double last_busy = 0;
    uint32 last_turns = 0;
    // Before this process sleeps, it resets its latch and looks for work once more. While it polls,
    // the latch stays set: SetLatch() in a backend then does not write to the latch's cache line.
    bool may_sleep = true;
    while (!ShutdownRequestPending) {
        if (may_sleep) ResetLatch(MyLatch);
        if (ConfigReloadPending) reload_settings();
        // While batches run on the device, the worker prepares and starts others behind them.
        repair_rings();
        bool busy = take_searches(worker);
        busy |= run_batches(worker);
        // One load buffer per turn: whenever no search waits, and one for every batch.
        const bool loaded = take_load(worker);
        if (take_forgets(worker) || loaded) {
            publish_device(worker);
            busy = true;
        }
        const bool waits = worker->mirror->busy();
        // A device that has batches and finishes none gives no sign of life.
        const uint32 turns = pg_atomic_read_u32(&own_device->turns);
        if ((turns != last_turns || !waits) && pg_atomic_read_u32(&own_device->suspect) != 0)
            pg_atomic_write_u32(&own_device->suspect, 0);
        last_turns = turns;
        const double now = seconds_now();
        if (!worker->unseen.empty()) {
            // Backends that wake each other have done so by then.
            constexpr double usual_seconds = 50e-6;
            if (now - worker->woken_at > usual_seconds) wake_unseen(worker);
            busy = true;
        }
        if (busy) last_busy = now;
        // Most batches finish sooner than this process could sleep and be woken.
        const double polled = waits ? polled_seconds : service->awake_us * 1e-6;
        const bool polls = now - last_busy < polled;
        bool later = false;
        if (busy || !polls) {
            drop_stale_assemblies(worker);
            later = return_empty_memory(worker);
        }
        if (busy || polls) {
            may_sleep = false;
        } else if (!may_sleep) {
            may_sleep = true;
        } else {
            // Wake up in time to drop stale assemblies and to return memory.
            const bool dropping = later || worker->assembles();
            const long timeout = waits ? 1 : dropping ? 1000 : -1;
            WaitLatch(MyLatch, WL_LATCH_SET | WL_EXIT_ON_PM_DEATH | (timeout > 0 ? WL_TIMEOUT : 0),
                      timeout, compat_wait_event("PgwarpServiceIdle"));
        }
        CHECK_FOR_INTERRUPTS();
    }
}

}  // namespace

}  // namespace pgwarp

using namespace pgwarp;

extern "C" PGWARP_EXPORT void pgwarp_service_main(Datum argument) {
    own_device = service_device(DatumGetInt32(argument));
    if (own_device->failure_unsaid) {
        ereport(LOG,
                (errmsg("pgwarp service%s was ended: %s", of_device(), own_device->last_failure),
                 errdetail("It starts again; until then sessions read the index pages.")));
        own_device->failure_unsaid = false;
    }
    start_watchdog();
    // Signals are still blocked: threads of the device's driver inherit this mask.
    char message[256] = "there is no device";
    OpenError error;
    Worker* worker = nullptr;
    const Attempt opened = attempt(
        message,
        [&] {
            auto made = std::make_unique<Worker>();
            if (!open_own_device(made.get(), &error)) return;
            made->reserve();
            worker = made.release();
        },
        10);
    pqsignal(SIGHUP, SignalHandlerForConfigReload);
    pqsignal(SIGTERM, request_service_end);
    BackgroundWorkerUnblockSignals();
    // Out of host memory says nothing about the device: let a new process try again.
    if (opened == Attempt::no_memory) {
        ereport(LOG, (errmsg("pgwarp service%s could not start: %s", of_device(), message)));
        proc_exit(1);
    }
    if (!worker) {
        // With 'auto', only the first worker logs why there is no GPU.
        const bool quietly = opened == Attempt::done && device_number(own_device) > 0 &&
                             error.failure == OpenFailure::no_such_device &&
                             strcmp(settings.devices, "auto") == 0;
        end_without_device(opened == Attempt::done && error.message[0] ? error.message : message,
                           quietly);
    }

    before_shmem_exit(leave_service, Datum{0});
    own_device->worker_pid = MyProcPid;
    own_device->worker_latch = MyLatch;
    own_device->why[0] = '\0';
    own_device->served_before = true;
    // A device scans for many searches in parallel, so a look-up costs each of them little.
    service->look_up_cost = own_number() == host_device ? 1 : 0.01;
    service->awake_us = own_number() == host_device ? 0 : most_awake_us;
    pg_atomic_write_u32(&own_device->in_flight, 0);
    // An eighth of the cores: each session that waits has a client, and both want a core.
    service->most_awake = std::max(1U, std::thread::hardware_concurrency() / 8);
    // Lists that were resident with an earlier worker are lost.
    renew_held(own_device);
    publish_device(worker);
    pg_atomic_write_u32(&own_device->suspect, 0);
    set_worker_state(own_device, WorkerState::serving);
    const int node = worker->device->numa_node();
    place_device_memory(own_device, node);
    ereport(LOG,
            (errmsg("pgwarp serves from %s%s", worker->device->name(),
                    service->devices > 1 ? psprintf(",%s", of_device() + 3) : ""),
             node >= 0 ? errdetail("It is near NUMA node %d, where its worker runs.", node) : 0,
             sharers_of(own_number()) > 1 && worker->device->takes_turns()
                 ? errhint("Devices that are made of one GPU take turns. With NVIDIA's "
                           "Multi-Process Service they work at once.")
                 : 0));
    serve(worker);
    // Exit code 1: the postmaster restarts the worker, unless the server is shutting down.
    proc_exit(1);
}
