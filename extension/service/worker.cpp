// The service's worker: gathers what backends submitted, runs it in batches, answers, and takes in
// the lists they send. Batching needs no timer: while one batch runs, the next one gathers.
//
// Whatever goes wrong on the device ends in an answer "failed", upon which a backend reads its
// pages itself. A device that is lost for this process ends the process; the postmaster starts
// another.

#include <cstring>

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

// Wakes everybody who waits, with an answer that sends them to the pages.
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

// What was resident with an earlier worker is not any more.
void clear_gauges() {
    for (IndexStatistics& entry : statistics_places())
        for (int i = first_gauge; i < counter_count; ++i)
            pg_atomic_write_u64(&entry.counters[i], 0);
}

// There is no device. Where there never was one, there is nothing to wait for; a device that was
// lost may come back, and another process is needed to see it.
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

void serve(Worker* worker) {
    // When nothing has happened for so long, batches are looked after every millisecond only.
    constexpr double polled_seconds = 0.005;
    double last_busy = 0;
    uint32 last_turns = 0;
    // Before this process sleeps, it looks once more with its latch reset. While it polls, the
    // latch stays set: a backend that sets it again finds it so, and leaves its line of the cache
    // alone.
    bool may_sleep = true;
    while (!ShutdownRequestPending) {
        if (may_sleep) ResetLatch(MyLatch);
        if (ConfigReloadPending) {
            ConfigReloadPending = false;
            const int fault = settings.fault;
            ProcessConfigFile(PGC_SIGHUP);
            if (settings.fault != fault)
                ereport(LOG, (errmsg("pgwarp.debug_fault is now %s",
                                     GetConfigOption("pgwarp.debug_fault", false, false))));
        }
        // While some batches run on the device, others are gathered and started behind them.
        bool busy = take_searches(worker);
        busy |= run_batches(worker);
        // A list is taken in whenever nothing else waits, and one for every batch.
        const bool loaded = take_load(worker);
        if (take_forgets(worker) || loaded) {
            publish_devices(worker);
            busy = true;
        }
        const bool waits = worker->waits_for_device();
        // A device that has batches and ends none is no sign of life.
        const uint32 turns = pg_atomic_read_u32(&service->turns);
        if ((turns != last_turns || !waits) && pg_atomic_read_u32(&service->suspect) != 0)
            pg_atomic_write_u32(&service->suspect, 0);
        last_turns = turns;
        const double now = seconds_now();
        if (busy) last_busy = now;
        // Most batches are done sooner than this process could fall asleep and be woken.
        const bool polls = waits && now - last_busy < polled_seconds;
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
            // With something that may have to be dropped or given back, not for ever.
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
    // Signals are still blocked: the threads that a device's driver starts inherit that.
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
    // Another process may have the memory that this one lacked, which says nothing of devices.
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
    // A search of a device shares its time with others, and has them scan side by side.
    service->look_up_cost = worker->places[0].number < 0 ? 1 : 0.01;
    clear_gauges();
    publish_devices(worker);
    pg_atomic_write_u32(&service->suspect, 0);
    set_worker_state(WorkerState::serving);
    for (const Place& place : worker->places)
        ereport(LOG, (errmsg("pgwarp serves from %s", place.device->name())));
    for (const std::string& why : worker->not_opened)
        ereport(LOG, (errmsg("pgwarp could not open a device: %s", why.c_str())));
    serve(worker);
    // A code that says: start me again, unless the server is going down.
    proc_exit(1);
}
