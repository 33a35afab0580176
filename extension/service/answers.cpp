#include <cstring>

#include "extension/service/placement.h"
#include "extension/service/worker.h"
#include "extension/settings.h"

extern "C" {
#include "miscadmin.h"
#include "storage/ipc.h"
#include "storage/latch.h"
#include "storage/proc.h"
#include "utils/timestamp.h"
}

namespace pgwarp {

namespace {

void wake(uint32 slot_number) {
    SetLatch(&ProcGlobal->allProcs[slot_number].procLatch);
}

}  // namespace

void answer(uint32 number) {
    SearchSlot* slot = service_slot(own_device, static_cast<int>(number));
    if (change_state(slot, SlotState::running, SlotState::done)) {
        wake(number);
    } else {
        free_slot(slot);
    }
}

namespace {

void publish(Worker* worker, const MirrorKey& key, const MirrorUse& use) {
    publish_held(own_device, key, use);
    IndexStatistics* statistics = find_statistics(key.database, key.index);
    if (!statistics) return;
    MirrorUse* published = nullptr;
    const uint64_t name = uint64_t{key.database} << 32 | key.index;
    char message[256];
    attempt(message, [&] { published = &worker->published[name]; });
    if (!published) return;
    MirrorUse& before = *published;
    // A mirror that has added the index again counts from zero.
    if (use.batches < before.batches || use.reloads < before.reloads) before = {};
    pg_atomic_uint64* counters = statistics->counters;
    const auto add = [counters](Counter which, uint64_t now, uint64_t then) {
        if (now > then) pg_atomic_fetch_add_u64(&counters[which], static_cast<int64>(now - then));
    };
    add(counter_batches, use.batches, before.batches);
    add(counter_batch_queries, use.batch_queries, before.batch_queries);
    add(counter_reloads, use.reloads, before.reloads);
    add(counter_appends, use.appends, before.appends);
    add(counter_received_bytes, use.received, before.received);
    add(counter_evictions, use.evictions, before.evictions);
    add(counter_errors, use.errors, before.errors);
    before = use;
    // The mirror has the index no longer: when it adds the index again, it counts from zero.
    if (use.lists == 0) worker->published.erase(name);
}

}  // namespace

void publish_use(Worker* worker, const MirrorKey& key) {
    // An unknown index has nothing to tell. It may be one that an earlier worker had, and belongs
    // to this device.
    if (const MirrorUse* use = worker->mirror->use(key)) publish(worker, key, *use);
}

void publish_changes(Worker* worker) {
    std::vector<MirrorChange> changes;
    char message[256];
    attempt(message, [&] { changes = worker->mirror->take_changes(); });
    for (const MirrorChange& change : changes) publish(worker, change.key, change.use);
}

namespace {

[[noreturn]] void end_for_lost_device(const char* message) {
    note_service_failure(own_device, message);
    own_device->failure_unsaid = false;
    ereport(LOG, (errmsg("pgwarp service ends: %s", message),
                  errdetail("It starts again; until then sessions read the index pages.")));
    proc_exit(1);
}

}  // namespace

// A worker may fail thousands of times a second. The log gets at most one line every ten seconds,
// with the number of failures that were not logged.
void note_failure(Attempt result, const char* message, const char* what) {
    constexpr int interval_ms = 10 * 1000;
    static TimestampTz last_said = 0;
    static uint64 unsaid = 0;
    if (result == Attempt::lost) end_for_lost_device(message);
    if (result == Attempt::done) return;
    const TimestampTz now = GetCurrentTimestamp();
    if (last_said != 0 && !TimestampDifferenceExceeds(last_said, now, interval_ms)) {
        ++unsaid;
        return;
    }
    ereport(LOG, (errmsg("pgwarp service could not %s: %s", what, message),
                  unsaid > 0 ? errdetail("It has failed another " UINT64_FORMAT
                                         " times since this was said last.",
                                         unsaid)
                             : 0));
    last_said = now;
    unsaid = 0;
}

namespace {

void report_resident(Worker* worker, uint32 number) {
    SearchSlot* slot = service_slot(own_device, static_cast<int>(number));
    const MirrorUse* use = worker->mirror->use(slot->key);
    slot->outcome = MirrorSearch::Outcome::found;
    slot->found_count = use ? use->resident_lists : 0;
    slot->probed_count = 0;
    answer(number);
}

}  // namespace

// Only the worker writes it.
static void add_in_flight(int searches) {
    pg_atomic_write_u32(&own_device->in_flight,
                        pg_atomic_read_u32(&own_device->in_flight) + static_cast<uint32>(searches));
}

bool take_searches(Worker* worker) {
    bool any = false;
    uint32 number;
    while (ring_pop(search_ring(own_device), &number)) {
        SearchSlot* slot = service_slot(own_device, static_cast<int>(number));
        pg_atomic_exchange_u32(&slot->queued, 0);
        if (!change_state(slot, SlotState::submitted, SlotState::running)) continue;
        any = true;
        if (slot->k == 0) {
            report_resident(worker, number);
            continue;
        }
        MirrorSearch& search = worker->searches[number];
        search = {};
        search.key = slot->key;
        SearchBlock* block = block_of(slot);
        search.query = block->query;
        search.dims = slot->dims;
        search.k = slot->k;
        search.probes = slot->probes;
        search.threshold = slot->threshold;
        search.radius_k = slot->radius_k;
        search.first_entries = slot->first_entries;
        search.narrowed = slot->narrowed;
        search.wants_versions = slot->wants_versions;
        search.first_probe = slot->first_probe;
        search.near_k = slot->near_k;
        search.floor = slot->floor;
        search.conditions = {block->conditions, slot->conditions, block->values, slot->values};
        search.found = block->found;
        search.probed = block->probed;
        search.lists = block->lists;
        search.missing = block->missing;
        search.most_missing = slot->fills ? service_most_missing : 0;
        search.outcome = MirrorSearch::Outcome::unknown;
        add_in_flight(1);
        const bool known = worker->mirror->knows(search.key);
        char message[256];
        Attempt result = Attempt::done;
        if (known) result = attempt(message, [&] { worker->mirror->submit(&search); });
        if (result != Attempt::done) search.outcome = MirrorSearch::Outcome::failed;
        if (!known || result != Attempt::done) worker->answered.push_back(&search);
        note_failure(result, message, "take in a search");
    }
    return any;
}

namespace {

// The worker asks one backend for a model, and another one if no model has come after 500 ms.
bool may_ask_for_model(Worker* worker, const MirrorKey& key) {
    constexpr int interval_ms = 500;
    const TimestampTz now = GetCurrentTimestamp();
    if (worker->wanted_model == key &&
        !TimestampDifferenceExceeds(worker->model_wanted_at, now, interval_ms))
        return false;
    worker->wanted_model = key;
    worker->model_wanted_at = now;
    return true;
}

// Answers finished searches. False: there were none.
bool answer_searches(Worker* worker) {
    if (worker->answered.empty()) return false;
    for (const MirrorSearch* search : worker->answered) {
        const auto number = static_cast<uint32>(search - worker->searches.data());
        SearchSlot* slot = service_slot(own_device, static_cast<int>(number));
        slot->outcome = search->outcome;
        slot->bring_model = slot->outcome == MirrorSearch::Outcome::unknown &&
                            may_ask_for_model(worker, search->key);
        slot->found_count = search->found_count;
        slot->taken = search->taken;
        slot->probed_count = search->probed_count;
        slot->complete = search->complete;
        slot->names_outdated = search->outdated.version.resident;
        if (slot->names_outdated) block_of(slot)->outdated = search->outdated;
        slot->missing_count = search->missing_count;
        slot->searched = search->searched;
        answer(number);
    }
    add_in_flight(-static_cast<int>(worker->answered.size()));
    const MirrorKey* last = nullptr;
    for (const MirrorSearch* search : worker->answered) {
        if (!last || !(*last == search->key)) publish_use(worker, search->key);
        last = &search->key;
    }
    publish_changes(worker);
    worker->answered.clear();
    pg_atomic_fetch_add_u32(&own_device->turns, 1);
    return true;
}

}  // namespace

// Collects answers before each start: on the device 'host' a batch is done when start_next()
// returns, and its searches must not wait for the next batch.
bool run_batches(Worker* worker) {
    bool any = answer_searches(worker);
    for (bool started = true; started;) {
        char message[256];
        Attempt result = attempt(message, [&] { worker->mirror->collect(&worker->answered); });
        any |= answer_searches(worker);
        note_failure(result, message, "finish a batch");
        started = false;
        result = attempt(message, [&] {
            started = worker->mirror->start_next(static_cast<size_t>(settings.max_batch));
        });
        // The searches of a batch that failed to start need their answers, too.
        started |= result != Attempt::done;
        any |= started;
        note_failure(result, message, "start a batch");
    }
    return any;
}

}  // namespace pgwarp
