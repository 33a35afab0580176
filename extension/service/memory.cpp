// Sets up the service: shared memory, and the registration of workers.

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
ServiceDevice* own_device = nullptr;

namespace {

shmem_startup_hook_type previous_startup = nullptr;

char* area = nullptr;

// Decided by the postmaster.
struct Counts {
    int devices;
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

// One worker each. A GPU too many among those of 'auto' ends its worker at once.
int count_devices() {
    int numbers[most_devices];
    const int named = parse_devices(settings.devices, numbers);
    if (named > 0) return named;
    // Once: shared memory and workers must agree.
    static const int gpus = cuda_library_is_there() ? std::clamp(count_gpus(), 1, most_devices) : 1;
    return gpus;
}

Counts decide_counts() {
    constexpr int load_buffers = 16;
    const int devices = count_devices();
    const int slots = compat_max_backends();
    if (!device_can_be()) return {devices, slots, 0, 0};
    return {devices, slots, std::min(slots, settings.max_searches), load_buffers};
}

Size ring_bytes(int numbers) {
    return MAXALIGN(offsetof(NumberRing, numbers) + static_cast<Size>(numbers) * sizeof(uint32));
}

// A slot fills whole cache lines: no false sharing between backends.
constexpr Size slot_bytes = TYPEALIGN(PG_CACHE_LINE_SIZE, sizeof(SearchSlot));
constexpr Size block_bytes = MAXALIGN(sizeof(SearchBlock));
constexpr Size load_buffer_bytes = MAXALIGN(sizeof(LoadBuffer));

// Byte offsets of the area's parts: changes and the first device from the beginning of the area,
// the others from the beginning of their device.
struct Layout {
    Size changes, first_device;
    Size search_ring, load_ring, block_ring, slots, blocks, load_buffers, device_end;
    Size end;
} layout;

Layout layout_of(const Counts& of) {
    Layout made;
    made.changes = MAXALIGN(sizeof(ServiceShared));
    made.first_device =
        TYPEALIGN(PG_CACHE_LINE_SIZE, made.changes + (of.blocks > 0 ? sizeof(ChangeCounts) : 0));
    made.search_ring = MAXALIGN(sizeof(ServiceDevice));
    made.load_ring = made.search_ring + ring_bytes(of.slots);
    made.block_ring = made.load_ring + ring_bytes(of.load_buffers);
    made.slots = TYPEALIGN(PG_CACHE_LINE_SIZE, made.block_ring + ring_bytes(of.blocks));
    made.blocks = made.slots + static_cast<Size>(of.slots) * slot_bytes;
    made.load_buffers = made.blocks + static_cast<Size>(of.blocks) * block_bytes;
    made.device_end =
        TYPEALIGN(PG_CACHE_LINE_SIZE,
                  made.load_buffers + static_cast<Size>(of.load_buffers) * load_buffer_bytes);
    made.end = made.first_device + static_cast<Size>(of.devices) * made.device_end;
    return made;
}

template <typename Part>
Part* part_of(const ServiceDevice* device, Size offset) {
    return reinterpret_cast<Part*>(reinterpret_cast<char*>(const_cast<ServiceDevice*>(device)) +
                                   offset);
}

void init_ring(NumberRing* ring, int size) {
    SpinLockInit(&ring->mutex);
    ring->size = static_cast<uint32>(size);
    ring->head = ring->count = 0;
    ring->pushed = 0;
}

void init_device(ServiceDevice* device) {
    memset(device, 0, sizeof(ServiceDevice));
    pg_atomic_init_u32(&device->worker_state, static_cast<uint32>(WorkerState::starting));
    device->since = GetCurrentTimestamp();
    device->info.number = host_device;
    pg_atomic_init_u32(&device->suspect, 0);
    pg_atomic_init_u32(&device->turns, 0);
    pg_atomic_init_u32(&device->awake, 0);
    pg_atomic_init_u32(&device->in_flight, 0);
    ConditionVariableInit(&device->load_freed);
    ConditionVariableInit(&device->block_freed);
    SpinLockInit(&device->forgets.mutex);
    for (HeldIndex& held : device->held) {
        pg_atomic_init_u64(&held.name, 0);
        pg_atomic_init_u64(&held.build, 0);
        pg_atomic_init_u32(&held.lists, 0);
        pg_atomic_init_u32(&held.resident_lists, 0);
        pg_atomic_init_u64(&held.bytes, 0);
        pg_atomic_init_u64(&held.batches, 0);
        pg_atomic_init_u64(&held.batch_queries, 0);
    }
    init_ring(search_ring(device), service->slots);
    init_ring(load_ring(device), service->load_buffers);
    init_ring(block_ring(device), service->blocks);
    for (int i = 0; i < service->blocks; ++i) ring_push(block_ring(device), static_cast<uint32>(i));
    for (int i = 0; i < service->slots; ++i) {
        SearchSlot* slot = service_slot(device, i);
        pg_atomic_init_u32(&slot->state, static_cast<uint32>(SlotState::free));
        pg_atomic_init_u32(&slot->queued, 0);
        slot->block = -1;
        slot->device = static_cast<uint32>(device_number(device));
    }
    for (int i = 0; i < service->load_buffers; ++i)
        pg_atomic_init_u32(&service_load_buffer(device, i)->state,
                           static_cast<uint32>(LoadState::free));
}

void startup() {
    if (previous_startup) previous_startup();
    LWLockAcquire(AddinShmemInitLock, LW_EXCLUSIVE);
    bool found;
    layout = layout_of(counts);
    area = static_cast<char*>(ShmemInitStruct("pgwarp", layout.end, &found));
    service = reinterpret_cast<ServiceShared*>(area);
    common_build_share = &service->build_share;
    if (counts.blocks > 0) change_counts = reinterpret_cast<ChangeCounts*>(area + layout.changes);
    if (!found) {
        // Do not touch the blocks behind it: they are large, and most are never used.
        memset(service, 0, sizeof(ServiceShared));
        for (pg_atomic_uint32& time : service->sent_at) pg_atomic_init_u32(&time, 0);
        service->devices = counts.devices;
        service->slots = counts.slots;
        service->blocks = counts.blocks;
        service->load_buffers = counts.load_buffers;
        service->lock = &GetNamedLWLockTranche("pgwarp")->lock;
        for (IndexStatistics& entry : service->statistics) {
            pg_atomic_init_u64(&entry.last_used, 0);
            for (pg_atomic_uint64& counter : entry.counters) pg_atomic_init_u64(&counter, 0);
        }
        if (change_counts) init_change_counts(change_counts);
        service->places = settings.statistics_places;
        for (int i = 0; i < service->devices; ++i) init_device(service_device(i));
    }
    LWLockRelease(AddinShmemInitLock);
}

void request_memory() {
    counts = decide_counts();
    RequestAddinShmemSpace(layout_of(counts).end);
    RequestNamedLWLockTranche("pgwarp", 1);
}

}  // namespace

ServiceDevice* service_device(int number) {
    return reinterpret_cast<ServiceDevice*>(area + layout.first_device +
                                            static_cast<Size>(number) * layout.device_end);
}

int device_number(const ServiceDevice* device) {
    const Size offset = static_cast<Size>(reinterpret_cast<const char*>(device) - area);
    return static_cast<int>((offset - layout.first_device) / layout.device_end);
}

NumberRing* search_ring(const ServiceDevice* device) {
    return part_of<NumberRing>(device, layout.search_ring);
}

NumberRing* load_ring(const ServiceDevice* device) {
    return part_of<NumberRing>(device, layout.load_ring);
}

NumberRing* block_ring(const ServiceDevice* device) {
    return part_of<NumberRing>(device, layout.block_ring);
}

SearchSlot* service_slot(const ServiceDevice* device, int number) {
    return part_of<SearchSlot>(device, layout.slots + static_cast<Size>(number) * slot_bytes);
}

SearchBlock* service_block(const ServiceDevice* device, int number) {
    return part_of<SearchBlock>(device, layout.blocks + static_cast<Size>(number) * block_bytes);
}

SearchBlock* block_of(const SearchSlot* slot) {
    return service_block(service_device(static_cast<int>(slot->device)), slot->block);
}

LoadBuffer* service_load_buffer(const ServiceDevice* device, int number) {
    return part_of<LoadBuffer>(device,
                               layout.load_buffers + static_cast<Size>(number) * load_buffer_bytes);
}

void give_block_back(SearchSlot* slot) {
    if (slot->block < 0) return;
    ServiceDevice* device = service_device(static_cast<int>(slot->device));
    const auto block = static_cast<uint32>(slot->block);
    slot->block = -1;
    // Last in, first out: no more blocks are ever touched than were in use at once. Backends wait
    // only when the ring is empty, so only the push to an empty ring wakes them. It wakes all of
    // them, because further blocks may come back before the first waiter has looked.
    if (ring_push_front(block_ring(device), block))
        ConditionVariableBroadcast(&device->block_freed);
}

void free_slot(SearchSlot* slot) {
    give_block_back(slot);
    // A backend that finds the slot free may assign another block to it at once.
    pg_write_barrier();
    pg_atomic_write_u32(&slot->state, static_cast<uint32>(SlotState::free));
}

bool worker_serves(const ServiceDevice* device) {
    return pg_atomic_read_u32(const_cast<pg_atomic_uint32*>(&device->worker_state)) ==
           static_cast<uint32>(WorkerState::serving);
}

bool is_suspect(const ServiceDevice* device) {
    return pg_atomic_read_u32(const_cast<pg_atomic_uint32*>(&device->suspect)) != 0;
}

bool any_worker_serves() {
    for (int i = 0; service && i < service->devices; ++i)
        if (worker_serves(service_device(i))) return true;
    return false;
}

bool serves_from_device() {
    return any_worker_serves() && service->look_up_cost < 1;
}

void wake_worker(const ServiceDevice* device) {
    // Read once: a worker that exits sets it to null.
    Latch* latch = *static_cast<Latch* const volatile*>(&device->worker_latch);
    if (latch) SetLatch(latch);
}

void set_worker_state(ServiceDevice* device, WorkerState state) {
    // A worker that is started again in vain does not renew it.
    if (pg_atomic_read_u32(&device->worker_state) != static_cast<uint32>(state))
        device->since = GetCurrentTimestamp();
    pg_memory_barrier();
    pg_atomic_write_u32(&device->worker_state, static_cast<uint32>(state));
}

void note_service_failure(ServiceDevice* device, const char* why) {
    strlcpy(device->why, why, sizeof(device->why));
    strlcpy(device->last_failure, why, sizeof(device->last_failure));
    device->last_failure_at = GetCurrentTimestamp();
    device->failure_unsaid = true;
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

    const int devices = count_devices();
    for (int i = 0; i < devices; ++i) {
        BackgroundWorker worker = {};
        if (devices == 1)
            strlcpy(worker.bgw_name, "pgwarp service", BGW_MAXLEN);
        else
            snprintf(worker.bgw_name, BGW_MAXLEN, "pgwarp service, device %d of %d", i + 1,
                     devices);
        strlcpy(worker.bgw_type, "pgwarp service", BGW_MAXLEN);
        worker.bgw_flags = BGWORKER_SHMEM_ACCESS;
        // Also runs on a standby, as soon as that accepts queries.
        worker.bgw_start_time = BgWorkerStart_ConsistentState;
        worker.bgw_restart_time = 1;
        worker.bgw_main_arg = Int32GetDatum(i);
        strlcpy(worker.bgw_library_name, "pgwarp", sizeof(worker.bgw_library_name));
        strlcpy(worker.bgw_function_name, "pgwarp_service_main", sizeof(worker.bgw_function_name));
        RegisterBackgroundWorker(&worker);
    }
}

}  // namespace pgwarp
