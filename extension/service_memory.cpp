// Setting up the service: shared memory, and the worker's registration.

#include <cstring>

#include "kernels/mirror.h"
#include "extension/service.h"
#include "extension/settings.h"

extern "C" {
#include "miscadmin.h"
#include "postmaster/autovacuum.h"
#include "postmaster/bgworker.h"
#include "replication/walsender.h"
#include "storage/ipc.h"
#include "storage/proc.h"
#include "storage/shmem.h"
}

namespace pgwarp {

ServiceShared* service = nullptr;

namespace {

constexpr int load_buffer_count = 16;

shmem_startup_hook_type previous_startup = nullptr;

Size ring_bytes(int numbers) {
    return MAXALIGN(offsetof(NumberRing, numbers) + static_cast<Size>(numbers) * sizeof(uint32));
}

int slot_count() {
    return compat_max_backends();
}

char* area = nullptr;

Size shared_bytes() {
    return MAXALIGN(sizeof(ServiceShared)) + ring_bytes(slot_count()) +
           ring_bytes(load_buffer_count) +
           static_cast<Size>(slot_count()) * MAXALIGN(sizeof(SearchSlot)) +
           static_cast<Size>(load_buffer_count) * MAXALIGN(sizeof(LoadBuffer));
}

void init_ring(NumberRing* ring, int size) {
    SpinLockInit(&ring->mutex);
    ring->size = static_cast<uint32>(size);
    ring->head = ring->count = 0;
    ring->pushed = 0;
}

void startup() {
    if (previous_startup) previous_startup();
    LWLockAcquire(AddinShmemInitLock, LW_EXCLUSIVE);
    bool found;
    area = static_cast<char*>(ShmemInitStruct("pgwarp", shared_bytes(), &found));
    service = reinterpret_cast<ServiceShared*>(area);
    if (!found) {
        // The slots behind it are large and mostly never used: only what matters is touched.
        memset(service, 0, sizeof(ServiceShared));
        pg_atomic_init_u32(&service->worker_state, static_cast<uint32>(WorkerState::starting));
        service->since = GetCurrentTimestamp();
        pg_atomic_init_u32(&service->suspect, 0);
        pg_atomic_init_u32(&service->turns, 0);
        for (pg_atomic_uint32& time : service->sent_at) pg_atomic_init_u32(&time, 0);
        service->slots = slot_count();
        service->load_buffers = load_buffer_count;
        service->lock = &GetNamedLWLockTranche("pgwarp")->lock;
        ConditionVariableInit(&service->load_freed);
        init_ring(search_ring(), service->slots);
        init_ring(load_ring(), service->load_buffers);
        for (int i = 0; i < service->slots; ++i) {
            pg_atomic_init_u32(&service_slot(i)->state, static_cast<uint32>(SlotState::free));
            pg_atomic_init_u32(&service_slot(i)->queued, 0);
        }
        for (IndexStatistics& entry : service->statistics) {
            pg_atomic_init_u64(&entry.last_used, 0);
            for (pg_atomic_uint64& counter : entry.counters) pg_atomic_init_u64(&counter, 0);
        }
        service->places = settings.statistics_places;
        SpinLockInit(&service->forgets.mutex);
        for (int i = 0; i < service->load_buffers; ++i)
            pg_atomic_init_u32(&service_load_buffer(i)->state,
                               static_cast<uint32>(LoadState::free));
    }
    LWLockRelease(AddinShmemInitLock);
}

void request_memory() {
    RequestAddinShmemSpace(shared_bytes());
    RequestNamedLWLockTranche("pgwarp", 1);
}

}  // namespace

NumberRing* search_ring() {
    return reinterpret_cast<NumberRing*>(area + MAXALIGN(sizeof(ServiceShared)));
}

NumberRing* load_ring() {
    return reinterpret_cast<NumberRing*>(reinterpret_cast<char*>(search_ring()) +
                                         ring_bytes(slot_count()));
}

SearchSlot* service_slot(int number) {
    char* first = reinterpret_cast<char*>(load_ring()) + ring_bytes(load_buffer_count);
    return reinterpret_cast<SearchSlot*>(first +
                                         static_cast<Size>(number) * MAXALIGN(sizeof(SearchSlot)));
}

LoadBuffer* service_load_buffer(int number) {
    char* first = reinterpret_cast<char*>(service_slot(slot_count()));
    return reinterpret_cast<LoadBuffer*>(first +
                                         static_cast<Size>(number) * MAXALIGN(sizeof(LoadBuffer)));
}

void set_worker_state(WorkerState state) {
    service->since = GetCurrentTimestamp();
    pg_memory_barrier();
    pg_atomic_write_u32(&service->worker_state, static_cast<uint32>(state));
}

void note_service_failure(const char* why) {
    strlcpy(service->why, why, sizeof(service->why));
    strlcpy(service->last_failure, why, sizeof(service->last_failure));
    service->last_failure_at = GetCurrentTimestamp();
    service->failure_unsaid = true;
}

void ring_push(NumberRing* ring, uint32 number) {
    SpinLockAcquire(&ring->mutex);
    Assert(ring->count < ring->size);
    ring->numbers[(ring->head + ring->count++) % ring->size] = number;
    ++ring->pushed;
    SpinLockRelease(&ring->mutex);
}

bool ring_pop(NumberRing* ring, uint32* number) {
    SpinLockAcquire(&ring->mutex);
    const bool some = ring->count > 0;
    if (some) {
        *number = ring->numbers[ring->head];
        ring->head = (ring->head + 1) % ring->size;
        --ring->count;
    }
    SpinLockRelease(&ring->mutex);
    return some;
}

uint64 ring_pushed(NumberRing* ring) {
    SpinLockAcquire(&ring->mutex);
    const uint64 pushed = ring->pushed;
    SpinLockRelease(&ring->mutex);
    return pushed;
}

uint64 ring_popped(NumberRing* ring) {
    SpinLockAcquire(&ring->mutex);
    const uint64 popped = ring->pushed - ring->count;
    SpinLockRelease(&ring->mutex);
    return popped;
}

void request_service() {
    if (!process_shared_preload_libraries_in_progress) return;
    if (strcmp(settings.devices, "none") == 0) return;
    compat_request_shared_memory(request_memory);
    previous_startup = shmem_startup_hook;
    shmem_startup_hook = startup;

    BackgroundWorker worker = {};
    strlcpy(worker.bgw_name, "pgwarp service", BGW_MAXLEN);
    strlcpy(worker.bgw_type, "pgwarp service", BGW_MAXLEN);
    worker.bgw_flags = BGWORKER_SHMEM_ACCESS;
    // On a standby too, as soon as it takes queries.
    worker.bgw_start_time = BgWorkerStart_ConsistentState;
    worker.bgw_restart_time = 1;
    strlcpy(worker.bgw_library_name, "pgwarp", sizeof(worker.bgw_library_name));
    strlcpy(worker.bgw_function_name, "pgwarp_service_main", sizeof(worker.bgw_function_name));
    RegisterBackgroundWorker(&worker);
}

}  // namespace pgwarp
