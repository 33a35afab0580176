// The service: background workers, one for each device, that keep lists there and answer searches
// for all backends. This header declares all of its shared memory.
//
// Devices share statistics of indexes, and nothing else: each has slots, blocks, rings and load
// buffers of its own (ServiceDevice). So a worker that hangs, or is being restarted, holds nothing
// that a search on another device needs.
//
// On each device, each backend has one slot, at its number in the PGPROC array. States of a slot:
//
//     free -> submitted -> running -> done -> free
//               |             |
//               v (cancelled) v (cancelled)
//             free         abandoned -> free (by the worker)
//
// The backend moves free -> submitted and done -> free, the worker submitted -> running -> done;
// each change is one compare-and-swap, so a cancelled backend and the worker cannot both own a
// slot. The worker sets the latch of the waiting backend.
//
// Slots are small. The query and the room for its answer are in a block. There are as many blocks
// as searches may be in progress (pgwarp.max_searches). A ring holds the numbers of free blocks; a
// process that pops a number owns that block. A block has one owner at any time:
//
//     the backend    pops it just before it submits; no error can be reported in between
//     the slot       while the slot is submitted, running, done or abandoned
//
// The process that frees a slot also frees its block, and frees the block first if the slot can be
// reused at once:
//
//     cancelled while submitted, or done: the backend, also when it exits (before_shmem_exit)
//     abandoned: the worker, when the search that writes to the block has finished
//
// So a block has no other owner while the worker may write to it, and a backend that exits leaks no
// block. A backend that finds no free block within some milliseconds searches the pages.
//
// A backend may search several indexes at once, those of a table's partitions. For its further
// searches there are further slots, one for each block, behind those of the backends: the process
// that pops a block has the block's slot, too. Such a slot is freed before its block is, and no
// backend waits for one.
//
// Backends send lists to a worker in load buffers of its device. A backend holds the locks for
// reading an index; it fills a buffer with pages of lists, or with a model, and submits it. The
// worker never opens a relation. It frees a buffer after loading it. When the worker exits, it
// frees all submitted buffers and the one that it is loading.
//
// What the worker trusts. A backend that goes wrong may leave anything in what backends write: its
// slots, its blocks, load buffers, rings, the queue of indexes to forget, the flag `suspect`. The
// worker reads each number there once, checks the copy, and uses the copy; a search or a load that
// is not sound fails alone. The process that finds a ring not sound empties it, and the worker
// fills it again from the states of slots, buffers and blocks. A block belongs to one slot only
// (owns_block()), whatever the ring or a slot says.
// Trusted are locks and condition variables, without which nothing can be repaired; the owners of
// blocks; what only the postmaster or the worker itself writes; and the columns of lists that are
// sent, as PostgreSQL trusts what is in its shared buffers.
#pragma once

#include <span>

#include "kernels/mirror.h"
#include "extension/device/build_memory.h"
#include "extension/index/format.h"
#include "extension/settings.h"
#include "extension/limits.h"

extern "C" {
#include "port/atomics.h"
#include "storage/condition_variable.h"
#include "storage/latch.h"
#include "storage/lwlock.h"
#include "storage/spin.h"
#include "utils/timestamp.h"
}

namespace pgwarp {

inline constexpr uint32 service_most_k = max_list_k;
// Lists of one search: from first_probe up to probes.
inline constexpr uint32 service_most_lists = 2048;
inline constexpr uint32 service_most_conditions = 32;
inline constexpr uint32 service_most_values = 2048;  // of all conditions of a search
inline constexpr uint32 service_most_missing = 64;

// The searches that one backend may have in progress: a worker runs no more batches at once
// (Mirror::most_batches). And the most, while a quarter of the blocks is free.
inline constexpr int searches_at_once = 16;
inline constexpr int most_searches_at_once = 64;

enum class SlotState : uint32 { free, submitted, running, done, abandoned };

struct SearchSlot {
    pg_atomic_uint32 state;   // SlotState
    pg_atomic_uint32 queued;  // 1: the slot's number is in the ring
    pg_atomic_uint32 silent;  // not 0: the backend waits for another answer, and is not woken

    // Written by the backend before it submits:
    MirrorKey key;
    uint32 dims;
    // 0: no search; the worker sets found_count to the number of resident lists, and if there is a
    // block names lists that the device lacks.
    uint32 k;
    uint32 probes;
    ListPlan plan;
    uint32 refined_k;
    // 0 or 1; no bool, which may have no other value:
    uint8 filtered;        // list_store.h
    uint8 wants_versions;  // even if the answer could be complete
    // Written by the worker while the slot is running:
    bool complete;        // mirror.h
    bool bring_model;     // the outcome is unknown, and this backend should send the model
    bool names_outdated;  // the block has the list
    // Written by the backend before it submits:
    uint32 first_probe;
    Neighbor floor;
    uint32 conditions;  // in the block
    uint32 values;
    ListRange range;  // that the device should have
    int block;        // -1: none
    int backend;      // of a block's slot: its number in the PGPROC array
    // Written by the worker while the slot is running:
    MirrorSearch::Outcome outcome;
    uint32 found_count;
    uint32 taken;
    uint32 missing_count;    // lists in the block
    uint32 probed_count;     // in the block: `lists` if the answer is complete, else `probed`
    float left_out;          // if refined
    SearchedLists searched;  // if filtered
    // Backends whose answers are there as well, and which this one wakes; below 0: none.
    static constexpr int wakes = 2;
    int to_wake[wakes];
    // Written by the worker while the slot is running, then by the backend: it has the answer.
    pg_atomic_uint32 seen;
    // Of a backend's slot on the first device: answers of several devices that the backend waits
    // for together. The backend sets it before it submits; each worker takes one away after an
    // answer, and wakes the backend if none is left. An answer that comes late to be counted, for
    // an earlier search, wakes the backend too early, which sleeps again; none is lost for it.
    pg_atomic_uint32 awaited;
};
static_assert(sizeof(SearchSlot) <= 256);

// Untouched pages of a block take no memory: the kernel allocates them on first use.
struct SearchBlock {
    union {
        MirrorProbe probed[service_most_lists];
        uint64 lists[service_most_lists];  // by list_and_generation()
    };
    Neighbor found[service_most_k];
    MirrorProbe outdated;  // a list that this backend should send, if the slot says so
    uint32 missing[service_most_missing];  // lists that the device lacks
    // Written by the backend before it submits:
    PackedCondition conditions[service_most_conditions];
    uint64 values[service_most_values];
    float query[max_dims];
};

// False if the slot was not in state `from`.
inline bool change_state(SearchSlot* slot, SlotState from, SlotState to) {
    uint32 expected = static_cast<uint32>(from);
    return pg_atomic_compare_exchange_u32(&slot->state, &expected, static_cast<uint32>(to));
}

enum class LoadState : uint32 { free, filling, ready };
// whole_index: lists too, but loading them evicts no list of the same index.
// to_fill: lists that are loaded if there is room for them.
enum class LoadKind : uint32 { model, lists, whole_index, to_fill };

struct LoadBuffer {
    static constexpr uint32 room = 1024 * 1024;
    pg_atomic_uint32 state;  // LoadState
    // Written by the backend while filling, read by the worker once ready:
    LoadKind kind;
    int owner;  // slot number; one backend sends all parts of a list or model, in order
    pid_t owner_pid;
    MirrorKey key;
    uint32 bytes;
    alignas(8) char data[room];
};

// In a buffer of kind model: a range of the floats of the centroids, followed by the codebook.
struct ModelPart {
    QuantizerShape shape;
    AttributeLayout attributes;
    uint64 first_float;
    uint64 floats;
    // (floats) float follow
};

// In a buffer of lists: header of a list, of entries appended to a list, or of a part of either.
struct ListPart {
    uint32 list;
    uint32 m;
    AttributeLayout attributes;
    uint32 pages;
    uint32 bytes;       // of these pages
    uint32 first_page;  // among all pages sent; must continue where the previous part ended
    uint32 last;        // 1: the last part, and `version` is set
    uint32 drop;        // 1: the device should drop the list; there are no pages
    // from.resident: the pages hold the entries appended since this version; otherwise all entries.
    MirrorVersion from;
    MirrorVersion version;
    uint64 changes;  // the list's count before its pages were read; unknown_changes: not counted
    // (pages) of LoadedPage
};

// Entries of one page, in columns as on the page, but with room for `capacity` entries. A page that
// is sent whole keeps its own capacity.
struct LoadedPage {
    uint32 count;
    uint32 capacity;
    uint32 refined;  // 1: refinements follow the columns
    uint32 unused;
    // columns follow, as in EntryLayout::with(); at a multiple of MAXIMUM_ALIGNOF, (count) of
    // refinement_stride(dims) bytes
};
inline Size loaded_columns_bytes(const EntryLayout& layout) {
    return MAXALIGN(sizeof(LoadedPage) + layout.end());
}
// `refinement`: bytes of each; 0: they have none. `layout` is without refinements.
inline Size loaded_page_bytes(const EntryLayout& layout, uint32 count, uint32 refinement) {
    return loaded_columns_bytes(layout) + MAXALIGN(Size{count} * refinement);
}

// A ring of numbers. Each number is in the ring at most once, so a sound ring cannot overflow.
struct NumberRing {
    slock_t mutex;
    uint32 head;
    uint32 count;
    uint32 lost;    // not 0: numbers were lost, and the worker has to fill the ring again
    uint64 pushed;  // since startup
    uint32 numbers[FLEXIBLE_ARRAY_MEMBER];
};
// With its size as this process knows it.
struct Ring {
    NumberRing* shared;
    uint32 size;
};

// Indexes that the worker must forget. The worker first loads all buffers that were submitted
// before the request: a model among them would add the index again.
struct Forget {
    Oid database;
    Oid index;     // 0: all of the database
    uint64 loads;  // load buffers submitted before
};
struct ForgetQueue {
    // Further requests are lost; the mirror evicts those indexes when memory is short.
    static constexpr uint32 size = 1024;
    slock_t mutex;
    uint32 head;
    uint32 count;
    Forget forgets[size];
};

enum class WorkerState : uint32 { starting, serving, down };
inline constexpr Size service_text = 256;  // bytes of a reason

// Written by the worker.
struct DeviceInfo {
    int number;      // -1: the host
    char name[128];  // empty: it was never open
    int64 memory_budget;
    int64 memory_used;
    int64 memory_reserved;
    // DeviceLoad of its mirror:
    int64 assigned;
    int64 indexes;
    int64 list_budget;
};

// An index on a device. Only the device's worker writes it; backends read it without a lock, to
// decide whom to ask (placement.h). Nothing depends on it: every answer is checked.
struct HeldIndex {
    pg_atomic_uint64 name;   // database << 32 | index; 0: free
    pg_atomic_uint64 build;  // by build_of(MirrorKey)
    // 0: the device had the index before its worker was restarted, and has none of it now.
    pg_atomic_uint32 lists;
    pg_atomic_uint32 resident_lists;
    pg_atomic_uint32 foreign_lists;  // of these: those that belong to other devices
    pg_atomic_uint64 bytes;
    pg_atomic_uint64 batches;  // since the device has the index
    pg_atomic_uint64 batch_queries;
    pg_atomic_uint64 refused;  // bytes of a model that it had no room for; 0: none
};
// An index has one of `held_ways` places, by its name. One that finds none free is not published.
inline constexpr uint32 held_ways = 16;
inline constexpr uint32 most_held = 2048;

// One device and its worker. Behind it, in shared memory: rings, slots, blocks, load buffers.
struct ServiceDevice {
    // Written by the worker when it starts and exits:
    pg_atomic_uint32 worker_state;  // WorkerState
    pid_t worker_pid;
    // The latch is in the worker's PGPROC, which outlives the worker: after its exit, setting the
    // latch at worst wakes another process for nothing. Null: there is no worker.
    Latch* worker_latch;
    TimestampTz since;       // of the state
    char why[service_text];  // why it does not serve
    bool served_before;      // an earlier worker has opened the device
    // Reason of the last failure of a worker. Written by that worker before it exits.
    char last_failure[service_text];
    TimestampTz last_failure_at;
    bool failure_unsaid;  // the next worker must write last_failure to the log

    // The worker's heartbeat: batches that it has finished plus buffers that it has loaded.
    pg_atomic_uint32 turns;
    // 1: a backend saw no heartbeat during its whole timeout. Backends then do not wait for the
    // worker, unless ivfpq.executor is 'service', until the worker clears the flag.
    pg_atomic_uint32 suspect;
    TimestampTz suspected_at;

    pg_atomic_uint32 awake;      // sessions that wait awake
    pg_atomic_uint32 in_flight;  // searches in the worker's hands; written by the worker

    ConditionVariable load_freed;
    ConditionVariable block_freed;

    DeviceInfo info;
    ForgetQueue forgets;
    HeldIndex held[most_held];
};

// Counters of one index. `database` and `index` change under the lock. A process that reads them
// without the lock may count for an index that was dropped, which is harmless.
enum Counter {
    // Added to by backends:
    counter_cpu_searches,
    counter_service_searches,
    counter_fallbacks,  // of the CPU searches: those that had asked the service
    counter_candidates,
    counter_ranked_rows,
    // Added to by the workers:
    counter_batches,
    counter_batch_queries,
    counter_reloads,
    counter_appends,
    counter_received_bytes,
    counter_evictions,
    counter_errors,
    counter_count,
};
struct IndexStatistics {
    Oid database;
    Oid index;
    pg_atomic_uint64 last_used;  // microseconds, as TimestampTz; to the second
    pg_atomic_uint64 counters[counter_count];
};
inline constexpr int most_indexes = 1024;

// Which device owns which lists of an index that is spread over devices (shards.h). Written under
// ServiceShared::lock; read without it: `sequence` is odd while a process writes.
struct ShardMap {
    pg_atomic_uint32 sequence;
    // Of seconds; 0: free.
    pg_atomic_uint32 measured_at;
    pg_atomic_uint32 used_at;
    uint32 members;  // devices that own lists, a bit each
    MirrorKey key;
    uint32 parts;  // of the index, at most as many as members
    // (parts) A part has the lists whose hash is at most this, and more than that of the part
    // before.
    uint32 last[most_devices];
    float weights[most_devices];  // (parts) the sizes that they were cut for, relative
    uint8 part_of[most_devices];  // that device i owns, if it is a member
    uint64 bytes;                 // of all lists on a device, when they were measured
    float shares[most_devices];   // (parts) of these bytes
    uint32 lists[most_devices];   // (parts)
    uint8 spread;                 // 0: only its bytes are known
};
// An index has one of `shard_ways` places, by its name.
inline constexpr uint32 shard_ways = 8;
inline constexpr uint32 most_shard_maps = 256;

struct ServiceShared {
    BuildShare build_share;

    // Written by the workers when they start; devices are all GPUs, or all the host.
    double look_up_cost;  // of a look-up on a device, relative to one on the CPU

    // Sessions and workers poll for this long before they sleep, as waking up takes longer than
    // most answers. 0 with 'host', which needs the cores itself. Sessions do not poll while a
    // worker has most_awake searches or more: then others use the cores better.
    int awake_us;
    uint32 most_awake;

    int devices;
    int backends;
    // Of each device:
    int slots;  // of backends, then of blocks
    int blocks;
    int load_buffers;

    // When lists were last sent, in milliseconds, by a hash of the list and the device. If many
    // backends see the same change, only one of them sends it.
    static constexpr uint32 send_times = 4096;
    pg_atomic_uint32 sent_at[send_times];

    ShardMap shard_maps[most_shard_maps];
    // When a backend last began to measure the lists of an index, in seconds, by a hash of the
    // index.
    static constexpr uint32 measure_times = 64;
    pg_atomic_uint32 measuring_at[measure_times];

    // Protects `database` and `index` of the statistics, and changes of shard maps.
    LWLock* lock;
    int places;  // length of `statistics` in use
    IndexStatistics statistics[most_indexes];
};

// Null if the library was not preloaded.
extern ServiceShared* service;
// In a worker: its device.
extern ServiceDevice* own_device;
ServiceDevice* service_device(int number);
// Called by the device's worker: its blocks and load buffers that are still unused shall come
// from this NUMA node, if there is memory there. -1: from any.
void place_device_memory(ServiceDevice* device, int node);
int device_number(const ServiceDevice* device);
SearchSlot* service_slot(const ServiceDevice* device, int number);
// Answers that a backend waits for.
pg_atomic_uint32* awaited_by(int backend);
int slot_number(const ServiceDevice* device, const SearchSlot* slot);
// The number in the PGPROC array of the backend that has the slot, as far as that is known: that of
// any backend otherwise.
int backend_of(const ServiceDevice* device, int number);
// Sets the latch of a backend, by its number in the PGPROC array; any other number is ignored.
void wake_backend(int number);
LoadBuffer* service_load_buffer(const ServiceDevice* device, int number);
SearchBlock* service_block(const ServiceDevice* device, int number);
// 1: the worker has the slot's search, and writes to its block. Only the worker writes it; the slot
// itself may say anything.
pg_atomic_uint32* in_hand(const ServiceDevice* device, int number);
ServiceDevice* device_of(const SearchSlot* slot);
// The block that a slot has; null if the slot names none, or one that is not its own.
SearchBlock* block_of(const SearchSlot* slot);
Ring search_ring(const ServiceDevice* device);
Ring load_ring(const ServiceDevice* device);
Ring block_ring(const ServiceDevice* device);  // free blocks

void ring_push(Ring ring, uint32 number);
// The caller checks the number, which may be any.
bool ring_pop(Ring ring, uint32* number);
// The next ring_pop() returns this number. True if the ring was empty before.
bool ring_push_front(Ring ring, uint32 number);
uint32 ring_count(Ring ring);  // without the lock
// Total pushes and pops since startup.
uint64 ring_pushed(Ring ring);
uint64 ring_popped(Ring ring);
// In a worker: fills rings of its device again that have lost numbers.
void repair_rings();

// Whether a block belongs to a slot: that is neither in the slot nor in the ring.
bool owns_block(const ServiceDevice* device, int slot_number, uint32 block);
// Pops a free block, and gives it to a slot of the device. False: there is none.
bool take_free_block(ServiceDevice* device, int slot_number, uint32* block);
// Pops a free block with its own slot, which is free. Null: there is none.
SearchSlot* take_block_slot(ServiceDevice* device);
// Frees the blocks of a slot that is free, and has lost their numbers.
void reclaim_blocks(ServiceDevice* device, int slot_number);
// Calls abandon() for each block's slot that this process has.
void for_own_block_slots(ServiceDevice* device, void (*abandon)(SearchSlot* slot));

// Returns a slot's block, if any, to the ring. The caller must own the slot: a backend that moved
// its own slot from submitted to free, or free_slot().
void give_block_back(SearchSlot* slot);
// Frees a slot that is done or abandoned, its block first.
void free_slot(SearchSlot* slot);

// Whether the device's worker is serving; it may hang. wake_worker() sets its latch.
bool worker_serves(const ServiceDevice* device);
void wake_worker(const ServiceDevice* device);
bool is_suspect(const ServiceDevice* device);
// Whether it serves, and is not known to hang.
bool is_available(const ServiceDevice* device);
// Whether an unavailable device has been down long enough to reassign its indexes.
bool is_away_for_long(const ServiceDevice* device);
// Whether any worker is serving.
bool any_worker_serves();

// memory.cpp: called while the postmaster loads the library.
void request_service();
// Why there is none.
const char* why_no_service();

// Called by the device's worker, also in a signal handler: neither function allocates.
void set_worker_state(ServiceDevice* device, WorkerState state);
void note_service_failure(ServiceDevice* device, const char* why);

// statistics.cpp
std::span<IndexStatistics> statistics_places();
// The entry of an index; creates it, and may evict that of another index. Null without a service.
IndexStatistics* statistics_of(Oid database, Oid index);
// The entry of an index, or null if it has none.
IndexStatistics* find_statistics(Oid database, Oid index);
// Index 0: all indexes of the database.
void forget_statistics(Oid database, Oid index);
void reset_statistics(Oid database);

// forget.cpp: tells the workers that an index, or a whole database (index 0), no longer exists.
void post_forget(Oid database, Oid index);
// Tells one worker to drop the index, which belongs to other devices now.
void post_forget_to(ServiceDevice* device, Oid database, Oid index);
// Called by a device's worker: pops the next request whose load buffers have all been loaded.
bool take_forget(ServiceDevice* device, Forget* forget);

}  // namespace pgwarp
