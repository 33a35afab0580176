// Sets up the service: shared memory, and the registration of workers.

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstring>

#include "kernels/mirror.h"
#include "kernels/numa.h"
#include "extension/device/library.h"
#include "extension/service/layout.h"
#include "extension/settings.h"

extern "C" {
#include "miscadmin.h"
#include "postmaster/autovacuum.h"
#include "postmaster/bgworker.h"
#include "postmaster/bgworker_internals.h"
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

// The postmaster has loaded the library.
bool preloaded = false;
// Devices whose worker the postmaster will start.
bool registered[most_devices] = {};

ServiceCounts counts;
ServiceLayout layout;

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
    // Read once: shared memory and workers must agree.
    static const int gpus = cuda_library_is_there() ? std::clamp(count_gpus(), 1, most_devices) : 1;
    return gpus;
}

ServiceCounts decide_counts() {
    constexpr int load_buffers = 16;
    const int devices = count_devices();
    const int backends = compat_max_backends();
    if (!device_can_be()) return {devices, backends, 0, 0};
    // A session that searches partitions has many searches under way.
    constexpr int searches_each = 4;
    const int blocks = std::min(backends * searches_each, settings.max_searches);
    return {devices, backends + blocks, blocks, load_buffers};
}

template <typename Part>
Part* part_of(const ServiceDevice* device, Size offset) {
    return reinterpret_cast<Part*>(reinterpret_cast<char*>(const_cast<ServiceDevice*>(device)) +
                                   offset);
}

// The owner of a block: no_owner while its number is in the ring, else a slot's number plus one,
// and the process that has the slot.
constexpr uint64 no_owner = 0;
uint64 owner_word(int slot_number, int pid) {
    return static_cast<uint64>(pid) << 32 | (static_cast<uint32>(slot_number) + 1);
}
bool is_of_slot(uint64 owner, int slot_number) {
    return static_cast<uint32>(owner) == static_cast<uint32>(slot_number) + 1;
}
pg_atomic_uint64* block_owner(const ServiceDevice* device, uint32 block) {
    return part_of<pg_atomic_uint64>(device, layout.block_owners) + block;
}

void init_ring(Ring ring) {
    SpinLockInit(&ring.shared->mutex);
    ring.shared->head = ring.shared->count = ring.shared->lost = 0;
    ring.shared->pushed = 0;
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
        pg_atomic_init_u32(&held.foreign_lists, 0);
        pg_atomic_init_u64(&held.bytes, 0);
        pg_atomic_init_u64(&held.batches, 0);
        pg_atomic_init_u64(&held.batch_queries, 0);
        pg_atomic_init_u64(&held.refused, 0);
    }
    init_ring(search_ring(device));
    init_ring(load_ring(device));
    init_ring(block_ring(device));
    for (int i = 0; i < service->blocks; ++i) {
        pg_atomic_init_u64(block_owner(device, static_cast<uint32>(i)), no_owner);
        ring_push(block_ring(device), static_cast<uint32>(i));
    }
    for (int i = 0; i < service->slots; ++i) {
        SearchSlot* slot = service_slot(device, i);
        pg_atomic_init_u32(&slot->state, static_cast<uint32>(SlotState::free));
        pg_atomic_init_u32(&slot->queued, 0);
        pg_atomic_init_u32(&slot->seen, 0);
        for (int& backend : slot->to_wake) backend = -1;
        pg_atomic_init_u32(&slot->awaited, 0);
        pg_atomic_init_u32(in_hand(device, i), 0);
        slot->block = -1;
        slot->backend = 0;
    }
    for (int i = 0; i < service->load_buffers; ++i)
        pg_atomic_init_u32(&service_load_buffer(device, i)->state,
                           static_cast<uint32>(LoadState::free));
}

void startup() {
    if (previous_startup) previous_startup();
    LWLockAcquire(AddinShmemInitLock, LW_EXCLUSIVE);
    bool found;
    layout = service_layout(counts);
    area = static_cast<char*>(ShmemInitStruct("pgwarp", layout.end, &found));
    service = reinterpret_cast<ServiceShared*>(area);
    common_build_share = &service->build_share;
    if (counts.blocks > 0) change_counts = reinterpret_cast<ChangeCounts*>(area + layout.changes);
    if (!found) {
        // Do not touch the blocks behind it: they are large, and most are never used.
        memset(static_cast<void*>(service), 0, sizeof(ServiceShared));
        for (pg_atomic_uint32& time : service->sent_at) pg_atomic_init_u32(&time, 0);
        for (pg_atomic_uint32& time : service->measuring_at) pg_atomic_init_u32(&time, 0);
        for (ShardMap& map : service->shard_maps) {
            pg_atomic_init_u32(&map.sequence, 0);
            pg_atomic_init_u32(&map.measured_at, 0);
            pg_atomic_init_u32(&map.used_at, 0);
        }
        service->devices = counts.devices;
        service->backends = compat_max_backends();
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
        for (int i = 0; i < service->devices; ++i) {
            ServiceDevice* device = service_device(i);
            init_device(device);
            if (!registered[i])
                strlcpy(device->why, "max_worker_processes is used up, so that it has no worker",
                        sizeof(device->why));
        }
    }
    LWLockRelease(AddinShmemInitLock);
}

void request_memory() {
    counts = decide_counts();
    RequestAddinShmemSpace(service_layout(counts).end);
    RequestNamedLWLockTranche("pgwarp", 1);
}

}  // namespace

ServiceDevice* service_device(int number) {
    return reinterpret_cast<ServiceDevice*>(area + layout.first_device +
                                            static_cast<Size>(number) * layout.device_end);
}

void place_device_memory(ServiceDevice* device, int node) {
    // Rings and slots were touched when the server started; blocks and buffers are the larger part.
    place_near(node, part_of<char>(device, layout.blocks), layout.device_end - layout.blocks);
}

int device_number(const ServiceDevice* device) {
    const Size offset = static_cast<Size>(reinterpret_cast<const char*>(device) - area);
    return static_cast<int>((offset - layout.first_device) / layout.device_end);
}

Ring search_ring(const ServiceDevice* device) {
    return {part_of<NumberRing>(device, layout.search_ring), static_cast<uint32>(counts.slots)};
}

Ring load_ring(const ServiceDevice* device) {
    return {part_of<NumberRing>(device, layout.load_ring),
            static_cast<uint32>(counts.load_buffers)};
}

Ring block_ring(const ServiceDevice* device) {
    return {part_of<NumberRing>(device, layout.block_ring), static_cast<uint32>(counts.blocks)};
}

SearchSlot* service_slot(const ServiceDevice* device, int number) {
    return part_of<SearchSlot>(device, layout.slots + static_cast<Size>(number) * slot_bytes);
}

pg_atomic_uint32* awaited_by(int backend) {
    return &service_slot(service_device(0), backend)->awaited;
}

int slot_number(const ServiceDevice* device, const SearchSlot* slot) {
    const char* first = reinterpret_cast<const char*>(service_slot(device, 0));
    return static_cast<int>(static_cast<Size>(reinterpret_cast<const char*>(slot) - first) /
                            slot_bytes);
}

SearchBlock* service_block(const ServiceDevice* device, int number) {
    return part_of<SearchBlock>(device, layout.blocks + static_cast<Size>(number) * block_bytes);
}

// By its address: nothing in a slot says where it is.
ServiceDevice* device_of(const SearchSlot* slot) {
    const Size offset = static_cast<Size>(reinterpret_cast<const char*>(slot) - area);
    return service_device(static_cast<int>((offset - layout.first_device) / layout.device_end));
}

pg_atomic_uint32* in_hand(const ServiceDevice* device, int number) {
    return part_of<pg_atomic_uint32>(device, layout.in_hand) + number;
}

SearchBlock* block_of(const SearchSlot* slot) {
    ServiceDevice* device = device_of(slot);
    const auto block = static_cast<uint32>(*static_cast<const volatile int*>(&slot->block));
    return owns_block(device, slot_number(device, slot), block)
               ? service_block(device, static_cast<int>(block))
               : nullptr;
}

LoadBuffer* service_load_buffer(const ServiceDevice* device, int number) {
    return part_of<LoadBuffer>(device,
                               layout.load_buffers + static_cast<Size>(number) * load_buffer_bytes);
}

bool owns_block(const ServiceDevice* device, int slot_number, uint32 block) {
    return block < static_cast<uint32>(counts.blocks) &&
           is_of_slot(pg_atomic_read_u64(block_owner(device, block)), slot_number);
}

// `slot_number`: the slot that gets it, or block_slot.
constexpr int block_slot = -1;
bool take_free_block(ServiceDevice* device, int slot_number, uint32* block) {
    while (ring_pop(block_ring(device), block)) {
        uint64 expected = no_owner;
        if (*block >= static_cast<uint32>(counts.blocks)) continue;
        const int owner = slot_number == block_slot
                              ? counts.slots - counts.blocks + static_cast<int>(*block)
                              : slot_number;
        if (pg_atomic_compare_exchange_u64(block_owner(device, *block), &expected,
                                           owner_word(owner, MyProcPid)))
            return true;
    }
    // Numbers that were lost come back from the worker.
    wake_worker(device);
    return false;
}

int backend_of(const ServiceDevice* device, int number) {
    const int backends = counts.slots - counts.blocks;
    if (number < backends) return number;
    const int backend = *static_cast<const volatile int*>(&service_slot(device, number)->backend);
    return backend >= 0 && backend < backends ? backend : 0;
}

void wake_backend(int number) {
    const int backends = counts.slots - counts.blocks;
    if (number >= 0 && number < backends) SetLatch(&ProcGlobal->allProcs[number].procLatch);
}

static bool is_block_slot(int number) {
    return number >= counts.slots - counts.blocks;
}

static SearchSlot* slot_of_block(const ServiceDevice* device, uint32 block) {
    return service_slot(device, counts.slots - counts.blocks + static_cast<int>(block));
}

// False: the block was not the slot's.
static bool free_block(ServiceDevice* device, int slot_number, uint32 block, bool* ring_was_empty) {
    pg_atomic_uint64* owner = block_owner(device, block);
    uint64 expected = pg_atomic_read_u64(owner);
    if (!is_of_slot(expected, slot_number) ||
        !pg_atomic_compare_exchange_u64(owner, &expected, no_owner))
        return false;
    *ring_was_empty = ring_push_front(block_ring(device), block);
    return true;
}

void give_block_back(SearchSlot* slot) {
    ServiceDevice* device = device_of(slot);
    const auto block = static_cast<uint32>(slot->block);
    slot->block = -1;
    // Last in, first out: no more blocks are ever touched than were in use at once. Backends wait
    // only when the ring is empty, so only the push to an empty ring wakes them. It wakes all of
    // them, because further blocks may come back before the first waiter has looked.
    bool was_empty = false;
    if (block < static_cast<uint32>(counts.blocks) &&
        free_block(device, slot_number(device, slot), block, &was_empty) && was_empty)
        ConditionVariableBroadcast(&device->block_freed);
}

void reclaim_blocks(ServiceDevice* device, int slot_number) {
    if (pg_atomic_read_u32(in_hand(device, slot_number)) != 0) return;
    bool was_empty;
    for (uint32 i = 0; i < static_cast<uint32>(counts.blocks); ++i)
        free_block(device, slot_number, i, &was_empty);
}

SearchSlot* take_block_slot(ServiceDevice* device) {
    uint32 block;
    if (!take_free_block(device, block_slot, &block)) return nullptr;
    SearchSlot* slot = slot_of_block(device, block);
    const int number = slot_number(device, slot);
    // A process that crashed may have left an answer that it never took.
    change_state(slot, SlotState::done, SlotState::free);
    if (pg_atomic_read_u32(&slot->state) != static_cast<uint32>(SlotState::free) ||
        pg_atomic_read_u32(in_hand(device, number)) != 0) {
        search_ring(device).shared->lost = 1;
        bool was_empty;
        free_block(device, number, block, &was_empty);
        wake_worker(device);
        return nullptr;
    }
    slot->backend = compat_my_proc_number();
    slot->block = static_cast<int>(block);
    return slot;
}

void for_own_block_slots(ServiceDevice* device, void (*abandon)(SearchSlot* slot)) {
    for (uint32 i = 0; i < static_cast<uint32>(counts.blocks); ++i) {
        SearchSlot* slot = slot_of_block(device, i);
        if (pg_atomic_read_u64(block_owner(device, i)) ==
            owner_word(slot_number(device, slot), MyProcPid))
            abandon(slot);
    }
}

void free_slot(SearchSlot* slot) {
    const auto write_free = [slot] {
        pg_write_barrier();
        pg_atomic_write_u32(&slot->state, static_cast<uint32>(SlotState::free));
        pg_write_barrier();
    };
    // A backend that finds its slot free may assign another block to it at once. But the slot
    // of a block has to be free when a backend pops the block.
    const bool free_first = is_block_slot(slot_number(device_of(slot), slot));
    if (free_first) write_free();
    give_block_back(slot);
    if (!free_first) write_free();
}

bool worker_serves(const ServiceDevice* device) {
    return pg_atomic_read_u32(const_cast<pg_atomic_uint32*>(&device->worker_state)) ==
           static_cast<uint32>(WorkerState::serving);
}

bool is_suspect(const ServiceDevice* device) {
    return pg_atomic_read_u32(const_cast<pg_atomic_uint32*>(&device->suspect)) != 0;
}

bool is_available(const ServiceDevice* device) {
    return worker_serves(device) && !is_suspect(device);
}

bool is_away_for_long(const ServiceDevice* device) {
    // A worker that has failed is back after a second or two, and one that hangs is ended by the
    // watchdog.
    constexpr int away_ms = 10 * 1000;
    const TimestampTz since = worker_serves(device) ? device->suspected_at : device->since;
    return TimestampDifferenceExceeds(since, GetCurrentTimestamp(), away_ms);
}

bool any_worker_serves() {
    for (int i = 0; service && i < service->devices; ++i)
        if (worker_serves(service_device(i))) return true;
    return false;
}

void wake_worker(const ServiceDevice* device) {
    // Read once: a worker that exits sets it to null.
    Latch* latch = *static_cast<Latch* const volatile*>(&device->worker_latch);
    if (latch) SetLatch(latch);
}

void set_worker_state(ServiceDevice* device, WorkerState state) {
    // A worker that is restarted and fails does not renew the time.
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

// Under the lock: a ring that is not sound, or has no room, has lost its numbers.
static void make_sound(const Ring& ring, uint32 room) {
    NumberRing* shared = ring.shared;
    if (shared->head < ring.size && shared->count <= ring.size && ring.size - shared->count >= room)
        return;
    shared->head = shared->count = 0;
    shared->lost = 1;
}

void ring_push(Ring ring, uint32 number) {
    if (ring.size == 0) return;
    NumberRing* shared = ring.shared;
    SpinLockAcquire(&shared->mutex);
    make_sound(ring, 1);
    shared->numbers[(shared->head + shared->count++) % ring.size] = number;
    ++shared->pushed;
    SpinLockRelease(&shared->mutex);
}

bool ring_push_front(Ring ring, uint32 number) {
    if (ring.size == 0) return false;
    NumberRing* shared = ring.shared;
    SpinLockAcquire(&shared->mutex);
    make_sound(ring, 1);
    const bool was_empty = shared->count == 0;
    shared->head = (shared->head + ring.size - 1) % ring.size;
    shared->numbers[shared->head] = number;
    ++shared->count;
    ++shared->pushed;
    SpinLockRelease(&shared->mutex);
    return was_empty;
}

bool ring_pop(Ring ring, uint32* number) {
    NumberRing* shared = ring.shared;
    // The worker polls: testing for an empty ring without the lock does not hold up processes that
    // push.
    if (*static_cast<volatile uint32*>(&shared->count) == 0 || ring.size == 0) return false;
    SpinLockAcquire(&shared->mutex);
    make_sound(ring, 0);
    const bool some = shared->count > 0;
    if (some) {
        *number = shared->numbers[shared->head];
        shared->head = (shared->head + 1) % ring.size;
        --shared->count;
    }
    SpinLockRelease(&shared->mutex);
    return some;
}

uint32 ring_count(Ring ring) {
    const uint32 count = *static_cast<volatile uint32*>(&ring.shared->count);
    return std::min(count, ring.size);
}

uint64 ring_pushed(Ring ring) {
    SpinLockAcquire(&ring.shared->mutex);
    const uint64 pushed = ring.shared->pushed;
    SpinLockRelease(&ring.shared->mutex);
    return pushed;
}

uint64 ring_popped(Ring ring) {
    SpinLockAcquire(&ring.shared->mutex);
    make_sound(ring, 0);
    const uint64 popped = ring.shared->pushed - ring.shared->count;
    SpinLockRelease(&ring.shared->mutex);
    return popped;
}

// Empties a ring that has lost numbers. False: it has lost none.
static bool begin_repair(const Ring& ring) {
    NumberRing* shared = ring.shared;
    if (*static_cast<volatile uint32*>(&shared->lost) == 0) return false;
    SpinLockAcquire(&shared->mutex);
    shared->head = shared->count = shared->lost = 0;
    SpinLockRelease(&shared->mutex);
    return true;
}

// Whether a block has no owner, or one that is gone, and the worker does not use it.
static bool is_left(uint64 owner) {
    const auto slot = static_cast<int64>(static_cast<uint32>(owner)) - 1;
    if (slot < 0 || slot >= counts.slots) return true;
    if (pg_atomic_read_u32(in_hand(own_device, static_cast<int>(slot))) != 0) return false;
    // A PGPROC may keep the number of a process that is gone.
    const auto pid = static_cast<pid_t>(owner >> 32);
    if (kill(pid, 0) != 0 && errno == ESRCH) return true;
    const auto has_pid = [pid](const PGPROC& process) { return process.pid == pid; };
    const PGPROC* processes = ProcGlobal->allProcs;
    if (!is_block_slot(static_cast<int>(slot))) return !has_pid(processes[slot]);
    // The process may have popped the block just now, and its slot still name another.
    return std::none_of(processes, processes + counts.slots - counts.blocks, has_pid);
}

// A number that is pushed meanwhile may be in a ring twice: the process that pops it looks at its
// state.
void repair_rings() {
    if (begin_repair(search_ring(own_device)))
        for (int i = 0; i < counts.slots; ++i) {
            SearchSlot* slot = service_slot(own_device, i);
            // First the flag, then the state: a backend writes them the other way round. States
            // that are none go to take_searches(), too.
            pg_atomic_exchange_u32(&slot->queued, 0);
            const uint32 state = pg_atomic_read_u32(&slot->state);
            if (state != static_cast<uint32>(SlotState::free) &&
                state != static_cast<uint32>(SlotState::done) &&
                pg_atomic_read_u32(in_hand(own_device, i)) == 0 &&
                pg_atomic_exchange_u32(&slot->queued, 1) == 0)
                ring_push(search_ring(own_device), static_cast<uint32>(i));
        }
    if (begin_repair(load_ring(own_device)))
        for (int i = 0; i < counts.load_buffers; ++i)
            if (pg_atomic_read_u32(&service_load_buffer(own_device, i)->state) ==
                static_cast<uint32>(LoadState::ready))
                ring_push(load_ring(own_device), static_cast<uint32>(i));
    const Ring blocks = block_ring(own_device);
    if (!begin_repair(blocks)) {
        // No block is free: perhaps a process has lost some. Looking for these takes a while.
        constexpr int interval_ms = 50;
        static TimestampTz last_looked = 0;
        if (counts.blocks == 0 || ring_count(blocks) > 0) return;
        const TimestampTz now = GetCurrentTimestamp();
        if (!TimestampDifferenceExceeds(last_looked, now, interval_ms)) return;
        last_looked = now;
    }
    bool some = false;
    for (uint32 i = 0; i < blocks.size; ++i) {
        pg_atomic_uint64* owner = block_owner(own_device, i);
        uint64 word = pg_atomic_read_u64(owner);
        if (!is_left(word)) continue;
        // The owner names the process, too: a new backend in the same slot is another.
        if (word != no_owner && !pg_atomic_compare_exchange_u64(owner, &word, no_owner)) continue;
        ring_push(blocks, i);
        some = true;
    }
    if (some) ConditionVariableBroadcast(&own_device->block_freed);
}

namespace {

// The postmaster's list of workers; from 18 on it is doubly linked.
[[maybe_unused]] int length_of(const slist_head& list) {
    int length = 0;
    for (const slist_node* at = list.head.next; at; at = at->next) ++length;
    return length;
}
[[maybe_unused]] int length_of(const dlist_head& list) {
    int length = 0;
    for (const dlist_node* at = list.head.next; at && at != &list.head; at = at->next) ++length;
    return length;
}

}  // namespace

const char* why_no_service() {
    return preloaded ? "pgwarp.devices is 'none'"
                     : "the library was not preloaded (shared_preload_libraries)";
}

void request_service() {
    if (!process_shared_preload_libraries_in_progress) return;
    preloaded = true;
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
        // PostgreSQL only logs that max_worker_processes is used up: the list shows it.
        const int before = length_of(BackgroundWorkerList);
        RegisterBackgroundWorker(&worker);
        registered[i] = length_of(BackgroundWorkerList) > before;
    }
}

}  // namespace pgwarp
