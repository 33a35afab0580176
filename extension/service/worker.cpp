// The service's worker: collects searches that backends submitted, runs them in batches, answers
// them, and loads the lists that backends send. Batching needs no timer: while one batch runs,
// searches for the next one arrive.
//
// After any failure of the device the answer is "failed", and the backend reads the pages itself.
// If the device is lost for this process, the process exits, and the postmaster starts another.

#include <algorithm>
#include <cstring>
#include <thread>

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
    set_worker_state(WorkerState::down);
    service->worker_pid = 0;
    pg_memory_barrier();
    for (int i = 0; i < service->slots; ++i) {
        SearchSlot* slot = service_slot(i);
        change_state(slot, SlotState::submitted, SlotState::running);
        if (pg_atomic_read_u32(&slot->state) == static_cast<uint32>(SlotState::running) ||
            pg_atomic_read_u32(&slot->state) == static_cast<uint32>(SlotState::abandoned)) {
            slot->outcome = MirrorSearch::Outcome::failed;
            slot->found_count = slot->probed_count = 0;
            answer(static_cast<uint32>(i));
        }
    }
    uint32 number;
    while (ring_pop(search_ring(), &number))
        pg_atomic_write_u32(&service_slot(static_cast<int>(number))->queued, 0);
    free_loads();
}

// Lists that were resident with an earlier worker are lost.
void clear_gauges() {
    for (IndexStatistics& entry : statistics_places())
        for (int i = first_gauge; i < counter_count; ++i)
            pg_atomic_write_u64(&entry.counters[i], 0);
}

// There is no device. If there never was one, the worker exits for good. A device that was lost may
// come back; only a new process can open it, so the worker exits after a minute to be restarted.
[[noreturn]] void end_without_device(const char* message) {
    constexpr long wait_ms = 60 * 1000;
    if (strcmp(service->why, message) != 0)
        ereport(LOG, (errmsg("pgwarp does not serve: %s", message),
                      errdetail("Sessions search the index pages on the CPU.")));
    strlcpy(service->why, message, sizeof(service->why));
    service->devices = 0;
    set_worker_state(WorkerState::down);
    if (!service->served_before) proc_exit(0);
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

void set_awake(const Worker* worker) {
    service->awake_us = worker->places[0].number < 0 ? 0 : settings.wait_awake;
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
        if (ConfigReloadPending) {
            ConfigReloadPending = false;
            const int fault = settings.fault;
            ProcessConfigFile(PGC_SIGHUP);
            set_awake(worker);
            if (settings.fault != fault)
                ereport(LOG, (errmsg("pgwarp.debug_fault is now %s",
                                     GetConfigOption("pgwarp.debug_fault", false, false))));
        }
        // While batches run on the device, the worker prepares and starts others behind them.
        bool busy = take_searches(worker);
        busy |= run_batches(worker);
        // One load buffer per turn: whenever no search waits, and one for every batch.
        const bool loaded = take_load(worker);
        if (take_forgets(worker) || loaded) {
            publish_devices(worker);
            busy = true;
        }
        const bool waits = worker->waits_for_device();
        // A device that has batches and finishes none gives no sign of life.
        const uint32 turns = pg_atomic_read_u32(&service->turns);
        if ((turns != last_turns || !waits) && pg_atomic_read_u32(&service->suspect) != 0)
            pg_atomic_write_u32(&service->suspect, 0);
        last_turns = turns;
        const double now = seconds_now();
        if (busy) last_busy = now;
        // Most batches finish sooner than this process could sleep and be woken.
        const double polled = waits ? polled_seconds : service->awake_us * 1e-6;
        const bool polls = now - last_busy < polled;
        bool later = false;
        if (busy || !polls) {
            drop_stale_assemblies(worker);
            later = give_back_empty(worker);
        }
        if (busy || polls) {
            may_sleep = false;
        } else if (!may_sleep) {
            may_sleep = true;
        } else {
            // Wake up in time to drop stale assemblies and to return memory.
            const bool dropping = later || !worker->assemblies.empty();
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

extern "C" PGWARP_EXPORT void pgwarp_service_main(Datum) {
    if (service->failure_unsaid) {
        ereport(LOG, (errmsg("pgwarp service was ended: %s", service->last_failure),
                      errdetail("It starts again; until then sessions read the index pages.")));
        service->failure_unsaid = false;
    }
    start_watchdog();
    // Signals are still blocked: threads of the device's driver inherit this mask.
    char message[256] = "there is no device";
    Worker* worker = nullptr;
    const Attempt opened = attempt(
        message,
        [&] {
            auto made = std::make_unique<Worker>();
            open_places(made.get());
            made->reserve();
            if (made->places.empty() && !made->not_opened.empty())
                strlcpy(message, made->not_opened[0].c_str(), sizeof(message));
            if (!made->places.empty()) worker = made.release();
        },
        10);
    pqsignal(SIGHUP, SignalHandlerForConfigReload);
    pqsignal(SIGTERM, request_service_end);
    BackgroundWorkerUnblockSignals();
    // Out of host memory says nothing about devices: let a new process try again.
    if (opened == Attempt::no_memory) {
        ereport(LOG, (errmsg("pgwarp service could not start: %s", message)));
        proc_exit(1);
    }
    if (opened != Attempt::done || !worker) end_without_device(message);

    before_shmem_exit(leave_service, Datum{0});
    service->worker_pid = MyProcPid;
    service->worker_latch = MyLatch;
    service->why[0] = '\0';
    service->served_before = true;
    // A device scans for many searches in parallel, so a look-up costs each of them little.
    service->look_up_cost = worker->places[0].number < 0 ? 1 : 0.01;
    set_awake(worker);
    pg_atomic_write_u32(&service->in_flight, 0);
    // An eighth of the cores: each session that waits has a client, and both want a core.
    service->most_awake = std::max(1U, std::thread::hardware_concurrency() / 8);
    clear_gauges();
    publish_devices(worker);
    pg_atomic_write_u32(&service->suspect, 0);
    set_worker_state(WorkerState::serving);
    for (const Place& place : worker->places)
        ereport(LOG, (errmsg("pgwarp serves from %s", place.device->name())));
    for (const std::string& why : worker->not_opened)
        ereport(LOG, (errmsg("pgwarp could not open a device: %s", why.c_str())));
    serve(worker);
    // Exit code 1: the postmaster restarts the worker, unless the server is shutting down.
    proc_exit(1);
}
