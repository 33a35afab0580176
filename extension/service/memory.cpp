// Sets up the service: shared memory, and the worker's registration.

#include <algorithm>
#include <cstring>

#include "kernels/mirror.h"
#include "extension/device/library.h"
#include "extension/index/change_counts.h"
#include "extension/service/service.h"
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

shmem_startup_hook_type previous_startup = nullptr;

char* area = nullptr;

// Decided by the postmaster.
struct Counts {
    int slots;
    int blocks;
    int load_buffers;
} counts;

// If false, no search can run, and shared memory needs no blocks and no load buffers.
bool device_can_be() {
    if (cuda_library_is_there()) return true;
    int numbers[most_devices];
    const int count = parse_devices(settings.devices, numbers);
    return std::find(numbers, numbers + count, host_device) != numbers + count;
}

Counts decide_counts() {
    constexpr int load_buffers = 16;
    const int slots = compat_max_backends();
    if (!device_can_be()) return {slots, 0, 0};
    return {slots, std::min(slots, settings.max_searches), load_buffers};
}

Size ring_bytes(int numbers) {
    return MAXALIGN(offsetof(NumberRing, numbers) + static_cast<Size>(numbers) * sizeof(uint32));
}

// A slot fills whole cache lines: no false sharing between backends.
constexpr Size slot_bytes = TYPEALIGN(PG_CACHE_LINE_SIZE, sizeof(SearchSlot));
constexpr Size block_bytes = MAXALIGN(sizeof(SearchBlock));
constexpr Size load_buffer_bytes = MAXALIGN(sizeof(LoadBuffer));

// Byte offsets of the parts of the area, in this order after ServiceShared.
struct Layout {
    Size search_ring, load_ring, block_ring, slots, blocks, load_buffers, changes, end;
};
Layout layout_of(const Counts& of) {
    Layout layout;
    layout.search_ring = MAXALIGN(sizeof(ServiceShared));
    layout.load_ring = layout.search_ring + ring_bytes(of.slots);
    layout.block_ring = layout.load_ring + ring_bytes(of.load_buffers);
    layout.slots = TYPEALIGN(PG_CACHE_LINE_SIZE, layout.block_ring + ring_bytes(of.blocks));
    layout.blocks = layout.slots + static_cast<Size>(of.slots) * slot_bytes;
    layout.load_buffers = layout.blocks + static_cast<Size>(of.blocks) * block_bytes;
    layout.changes = layout.load_buffers + static_cast<Size>(of.load_buffers) * load_buffer_bytes;
    layout.end = layout.changes + (of.blocks > 0 ? sizeof(ChangeCounts) : 0);
    return layout;
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
    area = static_cast<char*>(ShmemInitStruct("pgwarp", layout_of(counts).end, &found));
    service = reinterpret_cast<ServiceShared*>(area);
    common_build_share = &service->build_share;
    if (counts.blocks > 0)
        change_counts = reinterpret_cast<ChangeCounts*>(area + layout_of(counts).changes);
    if (!found) {
        // Do not touch the blocks behind it: they are large, and most are never used.
        memset(service, 0, sizeof(ServiceShared));
        pg_atomic_init_u32(&service->worker_state, static_cast<uint32>(WorkerState::starting));
        service->since = GetCurrentTimestamp();
        pg_atomic_init_u32(&service->suspect, 0);
        pg_atomic_init_u32(&service->turns, 0);
        pg_atomic_init_u32(&service->awake, 0);
        pg_atomic_init_u32(&service->in_flight, 0);
        for (pg_atomic_uint32& time : service->sent_at) pg_atomic_init_u32(&time, 0);
        service->slots = counts.slots;
        service->blocks = counts.blocks;
        service->load_buffers = counts.load_buffers;
        service->lock = &GetNamedLWLockTranche("pgwarp")->lock;
        ConditionVariableInit(&service->load_freed);
        ConditionVariableInit(&service->block_freed);
        init_ring(search_ring(), service->slots);
        init_ring(load_ring(), service->load_buffers);
        init_ring(block_ring(), service->blocks);
        for (int i = 0; i < service->blocks; ++i) ring_push(block_ring(), static_cast<uint32>(i));
        for (int i = 0; i < service->slots; ++i) {
            pg_atomic_init_u32(&service_slot(i)->state, static_cast<uint32>(SlotState::free));
            pg_atomic_init_u32(&service_slot(i)->queued, 0);
            service_slot(i)->block = -1;
        }
        for (IndexStatistics& entry : service->statistics) {
            pg_atomic_init_u64(&entry.last_used, 0);
            for (pg_atomic_uint64& counter : entry.counters) pg_atomic_init_u64(&counter, 0);
        }
        if (change_counts) init_change_counts(change_counts);
        service->places = settings.statistics_places;
        SpinLockInit(&service->forgets.mutex);
        for (int i = 0; i < service->load_buffers; ++i)
            pg_atomic_init_u32(&service_load_buffer(i)->state,
                               static_cast<uint32>(LoadState::free));
    }
    LWLockRelease(AddinShmemInitLock);
}

void request_memory() {
    counts = decide_counts();
    RequestAddinShmemSpace(layout_of(counts).end);
    RequestNamedLWLockTranche("pgwarp", 1);
}

}  // namespace

NumberRing* search_ring() {
    return reinterpret_cast<NumberRing*>(area + layout_of(counts).search_ring);
}

NumberRing* load_ring() {
    return reinterpret_cast<NumberRing*>(area + layout_of(counts).load_ring);
}

NumberRing* block_ring() {
    return reinterpret_cast<NumberRing*>(area + layout_of(counts).block_ring);
}

SearchSlot* service_slot(int number) {
    return reinterpret_cast<SearchSlot*>(area + layout_of(counts).slots +
                                         static_cast<Size>(number) * slot_bytes);
}

SearchBlock* service_block(int number) {
    return reinterpret_cast<SearchBlock*>(area + layout_of(counts).blocks +
                                          static_cast<Size>(number) * block_bytes);
}

LoadBuffer* service_load_buffer(int number) {
    return reinterpret_cast<LoadBuffer*>(area + layout_of(counts).load_buffers +
                                         static_cast<Size>(number) * load_buffer_bytes);
}

void give_block_back(SearchSlot* slot) {
    if (slot->block < 0) return;
    const auto block = static_cast<uint32>(slot->block);
    slot->block = -1;
    // Last in, first out: no more blocks are ever touched than were in use at once. Backends wait
    // only when the ring is empty, so only the push to an empty ring wakes them. It wakes all of
    // them, because further blocks may come back before the first waiter has looked.
    if (ring_push_front(block_ring(), block)) ConditionVariableBroadcast(&service->block_freed);
}

void free_slot(SearchSlot* slot) {
    give_block_back(slot);
    // A backend that finds the slot free may assign another block to it at once.
    pg_write_barrier();
    pg_atomic_write_u32(&slot->state, static_cast<uint32>(SlotState::free));
}

bool worker_serves() {
    return service &&
           pg_atomic_read_u32(&service->worker_state) == static_cast<uint32>(WorkerState::serving);
}

bool serves_from_device() {
    return worker_serves() && service->look_up_cost < 1;
}

void wake_worker() {
    if (service->worker_latch) SetLatch(service->worker_latch);
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

bool ring_push_front(NumberRing* ring, uint32 number) {
    SpinLockAcquire(&ring->mutex);
    Assert(ring->count < ring->size);
    const bool was_empty = ring->count == 0;
    ring->head = (ring->head + ring->size - 1) % ring->size;
    ring->numbers[ring->head] = number;
    ++ring->count;
    ++ring->pushed;
    SpinLockRelease(&ring->mutex);
    return was_empty;
}

bool ring_pop(NumberRing* ring, uint32* number) {
    // The worker polls: testing for an empty ring without the lock does not hold up processes that
    // push.
    if (*static_cast<volatile uint32*>(&ring->count) == 0) return false;
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
    // Also runs on a standby, as soon as that accepts queries.
    worker.bgw_start_time = BgWorkerStart_ConsistentState;
    worker.bgw_restart_time = 1;
    strlcpy(worker.bgw_library_name, "pgwarp", sizeof(worker.bgw_library_name));
    strlcpy(worker.bgw_function_name, "pgwarp_service_main", sizeof(worker.bgw_function_name));
    RegisterBackgroundWorker(&worker);
}

}  // namespace pgwarp
