#include <algorithm>
#include <cstring>

#include "kernels/mirror.h"
#include "extension/service/client.h"
#include "extension/settings.h"
#include "extension/util/stopwatch.h"

extern "C" {
#include "access/htup_details.h"
#include "miscadmin.h"
#include "storage/ipc.h"
#include "storage/proc.h"
#include "storage/s_lock.h"
#include "utils/syscache.h"
#include "utils/timestamp.h"
}

namespace pgwarp {

// The worker owns the slot of a running search until the search has finished.
void abandon(SearchSlot* slot) {
    if (change_state(slot, SlotState::submitted, SlotState::free)) {
        give_block_back(slot);
        // Perhaps the worker has not seen it: `queued` may be left over, with no number in the
        // ring.
        search_ring(device_of(slot)).shared->lost = 1;
    } else if (!change_state(slot, SlotState::running, SlotState::abandoned))
        release_slot(slot);
}

namespace {

SearchSlot* my_slot(const ServiceDevice* device) {
    return service_slot(device, compat_my_proc_number());
}

// Pops a free block. False: none came free in about the time that searching the pages takes.
bool take_block(Deadline* deadline, uint32* block) {
    constexpr int max_wait_ms = 20;
    ServiceDevice* device = deadline->device;
    const int mine = compat_my_proc_number();
    if (take_free_block(device, mine, block)) return true;
    reclaim_blocks(device, mine);
    const TimestampTz began = GetCurrentTimestamp();
    bool taken = false;
    while (!taken && !must_stop_waiting(deadline) &&
           (deadline->while_alive ||
            !TimestampDifferenceExceeds(began, GetCurrentTimestamp(), max_wait_ms))) {
        ConditionVariableTimedSleep(&device->block_freed,
                                    std::min(wait_milliseconds(*deadline), long{max_wait_ms}),
                                    compat_wait_event("PgwarpServiceBlock"));
        taken = take_free_block(device, mine, block);
    }
    ConditionVariableCancelSleep();
    return taken;
}

// From now on, the last of this many answers wakes this backend. 0, as between such waits: every
// answer wakes it.
void await(int answers) {
    pg_atomic_write_u32(awaited_by(compat_my_proc_number()), static_cast<uint32>(answers));
}

// One of the awaited answers will not come.
void await_one_less() {
    pg_atomic_fetch_sub_u32(awaited_by(compat_my_proc_number()), 1);
}

void abandon_at_exit(int, Datum) {
    for (int i = 0; i < service->devices; ++i) {
        ServiceDevice* device = service_device(i);
        SearchSlot* slot = my_slot(device);
        abandon(slot);
        if (pg_atomic_read_u32(&slot->state) == static_cast<uint32>(SlotState::free))
            reclaim_blocks(device, compat_my_proc_number());
        for_own_block_slots(device, abandon);
    }
    drop_filling();
}

}  // namespace

void prepare_exit() {
    static bool prepared = false;
    if (prepared) return;
    prepared = true;
    before_shmem_exit(abandon_at_exit, Datum{0});
    // A session that was terminated while it waited has left its count.
    await(0);
}

namespace {

bool is_answered(SearchSlot* slot) {
    return pg_atomic_read_u32(&slot->state) == static_cast<uint32>(SlotState::done);
}

bool are_answered(const AskedSearch* searches, int count) {
    return std::all_of(searches, searches + count, [](const AskedSearch& search) {
        return !search.slot || is_answered(search.slot);
    });
}

// Nothing here may raise an error: the count must be taken back.
void wait_awake(const AskedSearch* searches, int count) {
    const int microseconds = service->awake_us;
    if (microseconds <= 0 || count == 0) return;
    for (int i = 0; i < count; ++i)
        if (pg_atomic_read_u32(&searches[i].deadline.device->in_flight) >= service->most_awake)
            return;
    ServiceDevice* device = searches[0].deadline.device;
    if (pg_atomic_fetch_add_u32(&device->awake, 1) < service->most_awake) {
        const double end = seconds_now() + microseconds * 1e-6;
        do
            for (int i = 0; i < 32 && !are_answered(searches, count); ++i) SPIN_DELAY();
        while (!are_answered(searches, count) && seconds_now() < end);
    }
    pg_atomic_fetch_sub_u32(&device->awake, 1);
}

void sleep_for_answers(long milliseconds) {
    WaitLatch(MyLatch, WL_LATCH_SET | WL_TIMEOUT | WL_EXIT_ON_PM_DEATH, milliseconds,
              compat_wait_event("PgwarpServiceAnswer"));
    ResetLatch(MyLatch);
    CHECK_FOR_INTERRUPTS();
}

// This backend has seen its answer: it wakes the backends whose answers came in the same batch.
void note_answered(SearchSlot* slot) {
    pg_read_barrier();
    pg_atomic_write_u32(&slot->seen, 1);
    for (const int backend : slot->to_wake) wake_backend(backend);
}

// Waits for the answers to searches that were submitted. Gives up those that do not come in time,
// and sets their slots to null.
void wait_for_answers(AskedSearch* searches, int count) {
    wait_awake(searches, count);
    while (!are_answered(searches, count)) {
        long milliseconds = 0;  // 0: all that are left were given up
        for (int i = 0; i < count; ++i) {
            AskedSearch* search = &searches[i];
            if (!search->slot || is_answered(search->slot)) continue;
            // The answer may have arrived since.
            if (must_stop_waiting(&search->deadline) && !is_answered(search->slot)) {
                abandon(search->slot);
                search->slot = nullptr;
                await_one_less();
                continue;
            }
            const long left = wait_milliseconds(search->deadline);
            milliseconds = milliseconds == 0 ? left : std::min(milliseconds, left);
        }
        if (milliseconds > 0) sleep_for_answers(milliseconds);
    }
    for (int i = 0; i < count; ++i)
        if (searches[i].slot) note_answered(searches[i].slot);
}

}  // namespace

bool wait_for_answer(SearchSlot* slot, Deadline* deadline) {
    if (pg_atomic_read_u32(&slot->silent) != 0) {
        // The worker looks at it after it has changed the state.
        pg_atomic_write_u32(&slot->silent, 0);
        pg_memory_barrier();
    }
    AskedSearch search = {};
    search.deadline = *deadline;
    search.slot = slot;
    wait_awake(&search, 1);
    while (!is_answered(slot)) {
        if (must_stop_waiting(deadline)) {
            // The answer may have arrived since the loop condition was checked.
            if (is_answered(slot)) break;
            return false;
        }
        sleep_for_answers(wait_milliseconds(*deadline));
    }
    note_answered(slot);
    return true;
}

// The transaction that wrote the database's row. ALTER DATABASE writes another row: then models and
// lists are sent again.
static TransactionId database_incarnation() {
    const HeapTuple tuple = SearchSysCache1(DATABASEOID, ObjectIdGetDatum(MyDatabaseId));
    if (!HeapTupleIsValid(tuple)) elog(ERROR, "cache lookup failed for database %u", MyDatabaseId);
    const TransactionId writer = HeapTupleHeaderGetRawXmin(tuple->t_data);
    ReleaseSysCache(tuple);
    return writer;
}

MirrorKey mirror_key(Relation index, const MetaPage& meta) {
    return {
        MyDatabaseId,  RelationGetRelid(index), compat_tablespace(index), compat_file_number(index),
        meta.build_id, database_incarnation()};
}

const char* why_not_served(const ServiceDevice* device) {
    return device->why[0] ? device->why : "its worker is not running";
}

bool insists_on_service() {
    return settings.executor == static_cast<int>(ExecutorChoice::service);
}

bool service_serves(const char** reason) {
    if (any_worker_serves()) return true;
    *reason = service ? why_not_served(service_device(0)) : why_no_service();
    return false;
}

bool service_is_silent() {
    for (int i = 0; i < service->devices; ++i)
        if (worker_serves(service_device(i)) && !is_suspect(service_device(i))) return false;
    // An idle worker that a session suspects by mistake has nothing else to wake it.
    for (int i = 0; i < service->devices; ++i) wake_worker(service_device(i));
    return true;
}

// Waits for a sign of life of a service that is silent. False: there was none.
static bool service_revives() {
    constexpr long interval = 10;
    const TimestampTz end =
        TimestampTzPlusMilliseconds(GetCurrentTimestamp(), settings.service_timeout);
    while (service_is_silent()) {
        if (GetCurrentTimestamp() >= end) return false;
        sleep_for_answers(interval);
    }
    return true;
}

namespace {

// Why a service that serves is not for this index; null: it is.
const char* why_not_for(Relation index) {
    if (RelationUsesLocalBuffers(index))
        return "temporary tables are in the memory of their session";
    if (insists_on_service()) return nullptr;
    if (service_is_silent()) return silent_reason;
    return statement_waited_in_vain() ? "the service did not answer this statement in time"
                                      : nullptr;
}

[[noreturn]] void report_unavailable(const char* reason) {
    ereport(ERROR, (errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
                    errmsg("the pgwarp service is not available: %s", reason),
                    errhint("Set ivfpq.executor to 'auto', or see shared_preload_libraries and "
                            "pgwarp.devices.")));
    pg_unreachable();
}

}  // namespace

bool service_usable(Relation index, const char** reason) {
    if (settings.executor == static_cast<int>(ExecutorChoice::cpu)) return false;
    const bool serves = service_serves(reason);
    if (!serves && insists_on_service()) report_unavailable(*reason);
    if (!serves) return false;
    if (const char* why = why_not_for(index)) {
        *reason = why;
        return false;
    }
    if (insists_on_service() && service_is_silent() && !service_revives())
        report_unavailable(silent_reason);
    return true;
}

bool service_would_be_used(Relation index) {
    const char* reason;
    return settings.executor != static_cast<int>(ExecutorChoice::cpu) && service_serves(&reason) &&
           !why_not_for(index);
}

double service_look_up_cost() {
    return service->look_up_cost;
}

// Makes the worker look at a slot.
static void ask_worker(ServiceDevice* device, SearchSlot* slot) {
    if (pg_atomic_exchange_u32(&slot->queued, 1) == 0)
        ring_push(search_ring(device), static_cast<uint32>(slot_number(device, slot)));
    wake_worker(device);
}

SearchSlot* prepare_slot(const WantedSearch& wanted, Deadline* deadline) {
    ServiceDevice* device = deadline->device;
    SearchSlot* slot = my_slot(device);
    // After an error, the slot may still hold an earlier answer.
    release_slot(slot);
    // Not free: the worker still runs a search that this backend has abandoned, or that an earlier
    // owner of the slot has; the worker will free it.
    if (pg_atomic_read_u32(&slot->state) != static_cast<uint32>(SlotState::free)) {
        search_ring(device).shared->lost = 1;
        wake_worker(device);
        return nullptr;
    }
    if (pg_atomic_read_u32(in_hand(device, compat_my_proc_number())) != 0) return nullptr;
    uint32 block = 0;
    if (wanted.k > 0 && !take_block(deadline, &block)) return nullptr;
    slot->block = wanted.k > 0 ? static_cast<int>(block) : -1;
    return slot;
}

SearchSlot* submit_search(const MirrorKey& key, const WantedSearch& wanted, ServiceDevice* device,
                          SearchSlot* slot, bool silent) {
    if (!slot) return nullptr;
    pg_atomic_write_u32(&slot->silent, silent);
    slot->key = key;
    slot->dims = wanted.dims;
    slot->k = wanted.k;
    slot->probes = wanted.probes;
    slot->plan = wanted.plan;
    slot->refined_k = wanted.refined_k;
    slot->filtered = wanted.filtered;
    slot->wants_versions = wanted.wants_versions;
    slot->range = wanted.range;
    slot->first_probe = wanted.first_probe;
    slot->floor = wanted.floor;
    slot->conditions = static_cast<uint32>(wanted.conditions.size());
    slot->values = count_values(wanted.conditions);
    if (wanted.k > 0) {
        SearchBlock* to = service_block(device, slot->block);
        memcpy(to->query, wanted.query, wanted.dims * sizeof(float));
        pack_conditions(wanted.conditions, to->conditions, to->values);
    }
    pg_write_barrier();
    pg_atomic_write_u32(&slot->state, static_cast<uint32>(SlotState::submitted));
    ask_worker(device, slot);
    return slot;
}

void ask_together(AskedSearch* searches, int count) {
    prepare_exit();
    for (int i = 0; i < count; ++i) searches[i].slot = nullptr;
    await(count > 1 ? count : 0);
    PG_TRY();
    {
        for (int i = 0; i < count; ++i) {
            AskedSearch* search = &searches[i];
            search->slot = submit_search(search->key, search->wanted, search->deadline.device,
                                         prepare_slot(search->wanted, &search->deadline), false);
            if (!search->slot) await_one_less();
        }
        wait_for_answers(searches, count);
    }
    PG_CATCH();
    {
        await(0);
        for (int i = 0; i < count; ++i)
            if (searches[i].slot) abandon(searches[i].slot);
        PG_RE_THROW();
    }
    PG_END_TRY();
    await(0);
}

SearchSlot* ask_service(const MirrorKey& key, const WantedSearch& wanted, Deadline* deadline) {
    AskedSearch search = {key, wanted, *deadline, true, nullptr};
    ask_together(&search, 1);
    *deadline = search.deadline;
    return search.slot;
}

void release_slot(SearchSlot* slot) {
    if (pg_atomic_read_u32(&slot->state) != static_cast<uint32>(SlotState::done)) return;
    free_slot(slot);
}

bool ask_for_missing(ServiceDevice* device, const MirrorKey& key, const ListRange& range,
                     MissingLists* missing) {
    prepare_exit();
    *missing = {};
    WantedSearch wanted = {};
    wanted.range = range;
    SearchSlot* slot = submit_search(key, wanted, device, take_block_slot(device), false);
    if (!slot) return false;
    PG_TRY();
    {
        const double end = seconds_now() + fill_seconds;
        while (!is_answered(slot) && seconds_now() < end) sleep_for_answers(1);
    }
    PG_CATCH();
    {
        abandon(slot);
        PG_RE_THROW();
    }
    PG_END_TRY();
    const bool answered = is_answered(slot);
    pg_read_barrier();
    const SearchBlock* block = answered ? block_of(slot) : nullptr;
    if (block) {
        missing->unknown = slot->outcome == MirrorSearch::Outcome::unknown;
        missing->bring_model = slot->bring_model;
        missing->count = Min(slot->missing_count, service_most_missing);
        memcpy(missing->lists, block->missing, missing->count * sizeof(uint32));
    }
    abandon(slot);
    return block != nullptr;
}

bool count_resident(const MirrorKey& key, Deadline* deadline, uint32* lists) {
    SearchSlot* slot = ask_service(key, {}, deadline);
    if (!slot) return false;
    const bool answered = slot->outcome != MirrorSearch::Outcome::failed;
    *lists = slot->found_count;
    release_slot(slot);
    return answered;
}

}  // namespace pgwarp
