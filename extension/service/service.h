// The service: one background worker that keeps lists on a device and answers searches for all
// backends. This header is its shared memory, whole.
//
// A backend has one slot, by its number in the array of processes. What a slot goes through:
//
//     free -> submitted -> running -> done -> free
//               |             |
//               v (cancelled) v (cancelled)
//             free         abandoned -> free (by the worker)
//
// The backend moves free -> submitted and done -> free, the worker submitted -> running -> done;
// each change is one compare-and-swap, so a cancelled backend and the worker cannot both have it.
// Who is waiting is woken by its latch.
//
// Slots are small. The query and the room for its answer are in a block, of which there are as many
// as searches may be under way (pgwarp.max_searches). Numbers of free blocks are in a ring: who
// takes one out has it alone. From there it goes with the slot, and has one owner at any time:
//
//     the backend    takes it out just before it submits; no error can come in between
//     the slot       while that is submitted, running, done or abandoned
//     who frees the slot gives the block back, and does so first where the slot may be taken at
//     once:
//         cancelled while submitted, and done: the backend, also when it exits (before_shmem_exit)
//         abandoned: the worker, when the search that writes to the block is through
//
// So a block is never another's while the worker may write to it, and a backend that ends leaves
// none behind. A backend that finds no free block within some milliseconds searches the pages.
//
// Lists travel the other way in load buffers: a backend, which holds the locks that reading an
// index takes, fills one with pages of lists, or with a model, and hands it over. The worker never
// opens a relation. It frees a buffer when it has taken it in, and as it ends those that were
// handed over and the one in its hand.
#pragma once

#include <span>

#include "kernels/mirror.h"
#include "extension/device/build_memory.h"
#include "extension/index/format.h"
#include "extension/settings.h"
#include "extension/types/vector.h"

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
inline constexpr uint32 service_most_probes = 2048;

enum class SlotState : uint32 { free, submitted, running, done, abandoned };

struct SearchSlot {
    pg_atomic_uint32 state;   // SlotState
    pg_atomic_uint32 queued;  // 1: the slot's number is in the ring

    // Written by the backend before it submits:
    MirrorKey key;
    uint32 dims;
    uint32 k;  // 0: no search; found_count is to be how many lists are resident
    uint32 probes;
    int block;  // -1: none
    // Written by the worker while the slot is running:
    MirrorSearch::Outcome outcome;
    uint32 bring_model;  // 1: unknown, and this backend is asked to bring the model
    uint32 found_count;
    uint32 probed_count;
};
static_assert(sizeof(SearchSlot) <= 128);

// Pages of it that are never used take no memory: the operating system gives them on first touch.
struct SearchBlock {
    MirrorProbe probed[service_most_probes];
    Neighbor found[service_most_k];
    float query[max_dims];  // the backend's
};

// False where the slot was not in the first state.
inline bool change_state(SearchSlot* slot, SlotState from, SlotState to) {
    uint32 expected = static_cast<uint32>(from);
    return pg_atomic_compare_exchange_u32(&slot->state, &expected, static_cast<uint32>(to));
}

enum class LoadState : uint32 { free, filling, ready };
// whole_index: lists too, but for them no list of the same index gives way.
enum class LoadKind : uint32 { model, lists, whole_index };

struct LoadBuffer {
    static constexpr uint32 room = 1024 * 1024;
    pg_atomic_uint32 state;  // LoadState
    // Written by the backend while filling, read by the worker once ready:
    LoadKind kind;
    int owner;  // slot number: parts of one thing come from one backend, in order
    pid_t owner_pid;
    MirrorKey key;
    uint32 bytes;
    alignas(8) char data[room];
};

// In a buffer of kind model: a part of centroids and codebook, as floats, one after the other.
struct ModelPart {
    QuantizerShape shape;
    uint64 first_float;
    uint64 floats;
    // (floats) float follow
};

// In a buffer of lists: a list, what was appended to one, or a part of either; then its pages.
struct ListPart {
    uint32 list;
    uint32 m;
    uint32 pages;
    uint32 bytes;       // of these pages
    uint32 first_page;  // of what is sent: a part is taken where the one before it ended
    uint32 last;        // 1: the last part; `version` holds then
    // Resident: the pages have what was appended to the list since this version; otherwise all.
    MirrorVersion from;
    MirrorVersion version;
    // (pages) of LoadedPage
};

// Entries of one page, in columns as there, but with room for `capacity` entries: all of the page's
// where it is sent whole.
struct LoadedPage {
    uint32 count;
    uint32 capacity;
    // codes, offsets and TIDs follow, as in columns_for()
};
inline EntryLayout columns_for(uint32 m, uint32 capacity) {
    const auto offsets_at = static_cast<uint32>(TYPEALIGN(sizeof(float), m * capacity));
    return {m, capacity, offsets_at, static_cast<uint32>(offsets_at + capacity * sizeof(float))};
}
inline Size loaded_page_bytes(const EntryLayout& layout) {
    return MAXALIGN(sizeof(LoadedPage) + layout.tids_at +
                    layout.capacity * sizeof(ItemPointerData));
}

// A ring of numbers, each in it once at most: it cannot overflow.
struct NumberRing {
    slock_t mutex;
    uint32 size;
    uint32 head;
    uint32 count;
    uint64 pushed;  // ever
    uint32 numbers[FLEXIBLE_ARRAY_MEMBER];
};

// Indexes that the worker is to forget. It does so when it has taken in all load buffers that were
// handed over before: a model among them would bring the index back.
struct Forget {
    Oid database;
    Oid index;     // 0: all of the database
    uint64 loads;  // handed over before
};
struct ForgetQueue {
    static constexpr uint32 size =
        1024;  // beyond it they are lost, and give way when room is short
    slock_t mutex;
    uint32 head;
    uint32 count;
    Forget forgets[size];
};

enum class WorkerState : uint32 { starting, serving, down };
inline constexpr Size service_text = 256;  // bytes of a reason

struct DeviceInfo {
    int number;  // -1: the host
    char name[128];
    int64 memory_budget;
    int64 memory_used;
    int64 memory_reserved;
};

// One index's counters. `database` and `index` change under the lock; who reads them without it may
// count for an index that is gone, which harms nobody.
enum Counter {
    // Added to by backends:
    counter_cpu_searches,
    counter_service_searches,
    counter_fallbacks,  // of the CPU searches: those that had asked the service
    counter_candidates,
    counter_ranked_rows,
    // Added to by the worker:
    counter_batches,
    counter_batch_queries,
    counter_reloads,
    counter_appends,
    counter_received_bytes,
    counter_evictions,
    counter_errors,
    // How things are, set by the worker:
    counter_lists,
    counter_resident_lists,
    counter_bytes,
    counter_count,
};
inline constexpr int first_gauge = counter_lists;
struct IndexStatistics {
    Oid database;
    Oid index;
    pg_atomic_uint64 last_used;  // microseconds, as TimestampTz; to the second
    pg_atomic_uint64 counters[counter_count];
};
inline constexpr int most_indexes = 1024;

struct ServiceShared {
    // The worker's, set as it starts and ends:
    pg_atomic_uint32 worker_state;  // WorkerState
    pid_t worker_pid;
    Latch* worker_latch;
    TimestampTz since;       // of the state
    char why[service_text];  // there is no service
    bool served_before;      // a worker had its devices once
    // Why a worker ended last, other than as it was told to. Written by the worker that ends.
    char last_failure[service_text];
    TimestampTz last_failure_at;
    bool failure_unsaid;  // the next worker writes it to the log

    // Counts batches that the worker has finished and load buffers that it has taken in: the worker
    // is alive where it changes.
    pg_atomic_uint32 turns;
    // 1: a backend saw no sign of life for all of its timeout. No backend waits for the worker
    // then, unless its setting insists, until the worker, alive after all, clears it.
    pg_atomic_uint32 suspect;
    TimestampTz suspected_at;

    BuildShare build_share;

    double look_up_cost;  // of its devices, in look-ups of the CPU

    int slots;
    int blocks;
    int load_buffers;
    ConditionVariable load_freed;
    ConditionVariable block_freed;

    int devices;
    DeviceInfo device[most_devices];

    // When lists were sent last, in milliseconds, by a hash: what many backends see has changed is
    // sent by one of them.
    static constexpr uint32 send_times = 4096;
    pg_atomic_uint32 sent_at[send_times];

    ForgetQueue forgets;

    LWLock* lock;  // over the assignment of statistics
    int places;    // of these that are used
    IndexStatistics statistics[most_indexes];
};

// Null where the library was not preloaded.
extern ServiceShared* service;
SearchSlot* service_slot(int number);
LoadBuffer* service_load_buffer(int number);
SearchBlock* service_block(int number);
NumberRing* search_ring();
NumberRing* load_ring();
NumberRing* block_ring();  // of blocks that are free

void ring_push(NumberRing* ring, uint32 number);
bool ring_pop(NumberRing* ring, uint32* number);
// As the next to be popped. True where the ring was empty.
bool ring_push_front(NumberRing* ring, uint32 number);
// How many ever were.
uint64 ring_pushed(NumberRing* ring);
uint64 ring_popped(NumberRing* ring);

// Gives the block of a slot back, if it has one. For the backend of a slot that it just took back,
// submitted no more: nobody else looks at the slot.
void give_block_back(SearchSlot* slot);
// Frees a slot that is done or abandoned, its block first.
void free_slot(SearchSlot* slot);

// Whether a worker is there, alive or not; wakes it.
bool worker_serves();
void wake_worker();

// memory.cpp: called while the postmaster loads the library.
void request_service();

// What the worker says of itself, also from a signal handler: neither allocates.
void set_worker_state(WorkerState state);
void note_service_failure(const char* why);

// statistics.cpp
std::span<IndexStatistics> statistics_places();
// An index's place, which another may have to leave. Null where there is no service.
IndexStatistics* statistics_of(Oid database, Oid index);
// The same, where there is an entry already.
IndexStatistics* find_statistics(Oid database, Oid index);
// Index 0: all of a database.
void forget_statistics(Oid database, Oid index);
void reset_statistics(Oid database);

// forget.cpp: tells the worker that an index is gone, or all of a database (index 0).
void post_forget(Oid database, Oid index);
// The worker's side: the next that is due.
bool take_forget(Forget* forget);

}  // namespace pgwarp
