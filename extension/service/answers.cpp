#include <algorithm>
#include <cstring>

#include "extension/service/placement.h"
#include "extension/service/worker.h"
#include "extension/util/stopwatch.h"

extern "C" {
#include "miscadmin.h"
#include "storage/ipc.h"
#include "storage/latch.h"
#include "storage/proc.h"
#include "utils/timestamp.h"
}

namespace pgwarp {

namespace {

// Bounds the memory that a batch takes on the device. Few servers have more searches at a time.
constexpr size_t most_at_once = 1024;

void wake(uint32 slot_number) {
    wake_backend(backend_of(own_device, static_cast<int>(slot_number)));
}

// The answer belongs to the backend from now on, which may not know yet; it is to wake `to_wake`.
// False: the backend waits for answers of other devices, too, and the last of these wakes it.
bool hand_over(uint32 number, const int (&to_wake)[SearchSlot::wakes]) {
    SearchSlot* slot = service_slot(own_device, static_cast<int>(number));
    memcpy(slot->to_wake, to_wake, sizeof(to_wake));
    pg_atomic_write_u32(&slot->seen, 0);
    // Before the slot changes: its backend may use it again at once.
    pg_atomic_write_u32(in_hand(own_device, static_cast<int>(number)), 0);
    pg_memory_barrier();
    const int backend = backend_of(own_device, static_cast<int>(number));
    if (!change_state(slot, SlotState::running, SlotState::done)) {
        free_slot(slot);
        return true;
    }
    pg_atomic_uint32* awaited = awaited_by(backend);
    return static_cast<int32>(pg_atomic_read_u32(awaited)) <= 0 ||
           static_cast<int32>(pg_atomic_sub_fetch_u32(awaited, 1)) <= 0;
}

// Whether a backend waits for another answer, too, and is not to be woken by this one.
bool is_silent(uint32 number) {
    SearchSlot* slot = service_slot(own_device, static_cast<int>(number));
    const int backend = backend_of(own_device, static_cast<int>(number));
    return pg_atomic_read_u32(&slot->silent) != 0 ||
           static_cast<int32>(pg_atomic_read_u32(awaited_by(backend))) > 1;
}

}  // namespace

void answer(uint32 number) {
    const bool last = hand_over(number, {-1, -1});
    // After the state has changed: the backend may have begun to wait for it.
    pg_memory_barrier();
    SearchSlot* slot = service_slot(own_device, static_cast<int>(number));
    if (last && pg_atomic_read_u32(&slot->silent) == 0) wake(number);
}

void wake_unseen(Worker* worker) {
    for (const uint32 number : worker->unseen) {
        SearchSlot* slot = service_slot(own_device, static_cast<int>(number));
        if (pg_atomic_read_u32(&slot->seen) == 0) wake(number);
    }
    worker->unseen.clear();
}

namespace {

// Hands answers over and has their backends woken. A signal takes microseconds, and the next batch
// waits for the worker: so the worker wakes a few backends, each of which wakes others, as a tree.
void answer_all(Worker* worker, std::vector<MirrorSearch*>* answered) {
    constexpr Size own_wakes = 8;
    const auto number_of = [worker](const MirrorSearch* search) {
        return static_cast<uint32>(search - worker->searches.data());
    };
    if (!worker->unseen.empty()) wake_unseen(worker);
    const auto silent =
        std::partition(answered->begin(), answered->end(),
                       [&](const MirrorSearch* search) { return !is_silent(number_of(search)); });
    for (auto search = silent; search != answered->end(); ++search) answer(number_of(*search));
    const auto count = static_cast<Size>(silent - answered->begin());
    const auto number_at = [&](Size i) { return number_of((*answered)[i]); };
    // Last first: a backend that is awake may wake others at once, and their answers must be there.
    for (Size i = count; i-- > 0;) {
        int to_wake[SearchSlot::wakes];
        for (Size j = 0; j < SearchSlot::wakes; ++j) {
            const Size other = own_wakes + i * SearchSlot::wakes + j;
            to_wake[j] =
                other < count ? backend_of(own_device, static_cast<int>(number_at(other))) : -1;
        }
        hand_over(number_at(i), to_wake);
    }
    for (Size i = 0; i < count && i < own_wakes; ++i) wake(number_at(i));
    for (Size i = own_wakes; i < count; ++i) worker->unseen.push_back(number_at(i));
    worker->woken_at = seconds_now();
}

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
    // The mirror has dropped the index: when it adds the index again, it counts from zero.
    if (use.lists == 0) worker->published.erase(name);
}

}  // namespace

void publish_use(Worker* worker, const MirrorKey& key) {
    // The mirror has no counts of an unknown index. An earlier worker may have had the index, which
    // still belongs to this device.
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

// The outcome of a question about an index that the mirror does not know.
MirrorSearch::Outcome outcome_of_unknown(const Worker* worker, const MirrorKey& key) {
    return is_refused(worker, key) ? MirrorSearch::Outcome::refused
                                   : MirrorSearch::Outcome::unknown;
}

// How many lists of an index are resident, and which are missing, where the slot has a block.
void report_resident(Worker* worker, uint32 number) {
    SearchSlot* slot = service_slot(own_device, static_cast<int>(number));
    const MirrorKey key = slot->key;
    const ListRange range = slot->range;
    const int block = slot->block;
    pg_compiler_barrier();  // nothing in the slot is read again
    const MirrorUse* use = worker->mirror->use(key);
    slot->outcome = use ? MirrorSearch::Outcome::found : outcome_of_unknown(worker, key);
    slot->bring_model = !use && wants_model(worker, key);
    slot->found_count = use ? use->resident_lists : 0;
    slot->probed_count = 0;
    slot->missing_count = 0;
    if (block >= 0 &&
        owns_block(own_device, static_cast<int>(number), static_cast<uint32>(block))) {
        slot->missing_count = static_cast<uint32>(worker->mirror->name_missing(
            key, range, std::span(service_block(own_device, block)->missing)));
    }
    answer(number);
}

}  // namespace

static void add_in_flight(Worker* worker, int searches) {
    worker->in_flight += static_cast<uint32>(searches);
    pg_atomic_write_u32(&own_device->in_flight, worker->in_flight);
}

namespace {

void refuse(uint32 number, const char* why) {
    SearchSlot* slot = service_slot(own_device, static_cast<int>(number));
    slot->outcome = MirrorSearch::Outcome::failed;
    slot->found_count = slot->probed_count = 0;
    answer(number);
    note_failure(Attempt::failed, why, "take in a search");
}

// Whether the index can have these conditions, which the worker has copied.
bool are_sound(const Worker::InHand& copied, const AttributeLayout& attributes) {
    const size_t values = copied.values.size();
    for (const PackedCondition& condition : copied.conditions)
        if (condition.attribute >= attributes.count || condition.value_count > values ||
            condition.first_value > values - condition.value_count ||
            condition.kind > ConditionKind::never)
            return false;
    return true;
}

// Copies a slot's search, and checks the copy. Null: it is sound; otherwise why not.
const char* copy_search(Worker* worker, uint32 number, MirrorSearch* search) {
    SearchSlot slot;
    memcpy(&slot, service_slot(own_device, static_cast<int>(number)), sizeof(slot));
    pg_compiler_barrier();  // nothing in the slot is read again
    Worker::InHand& copied = worker->in_hand[number];
    if (slot.block < 0 ||
        !owns_block(own_device, static_cast<int>(number), static_cast<uint32>(slot.block)))
        return "the block is not that of the slot";
    if (slot.k == 0 || slot.k > service_most_k || slot.dims > max_dims)
        return "k or dims are out of range";
    if (slot.first_probe >= slot.probes || slot.probes - slot.first_probe > service_most_lists)
        return "probes are out of range";
    if (slot.refined_k > slot.k || (slot.refined_k > 0 && slot.filtered != 0))
        return "refined rows are out of range";
    if (slot.conditions > service_most_conditions || slot.values > service_most_values ||
        (slot.filtered == 0 && (slot.conditions > 0 || slot.first_probe > 0)))
        return "conditions are out of range";
    SearchBlock* block = service_block(own_device, slot.block);
    copied.block = slot.block;
    copied.conditions.assign(block->conditions, block->conditions + slot.conditions);
    copied.values.assign(block->values, block->values + slot.values);
    *search = {};
    search->key = slot.key;
    search->query = block->query;
    search->dims = slot.dims;
    search->k = slot.k;
    search->probes = slot.probes;
    search->plan = slot.plan;
    search->refined_k = slot.refined_k;
    search->filtered = slot.filtered != 0;
    search->wants_versions = slot.wants_versions != 0;
    search->first_probe = slot.first_probe;
    search->floor = slot.floor;
    search->conditions = {copied.conditions.data(), slot.conditions, copied.values.data(),
                          slot.values};
    search->found = block->found;
    search->probed = block->probed;
    search->lists = block->lists;
    search->range = slot.range;
    search->outcome = MirrorSearch::Outcome::unknown;
    const MirrorIndex known = worker->mirror->index(search->key);
    if (!known.shape) return nullptr;
    if (search->first_probe >= known.shape->lists) return "probes are out of range";
    return are_sound(copied, *known.attributes) ? nullptr : "a condition is not of the index";
}

void take_search(Worker* worker, uint32 number) {
    MirrorSearch& search = worker->searches[number];
    const char* wrong = nullptr;
    char message[256];
    Attempt result = attempt(message, [&] { wrong = copy_search(worker, number, &search); });
    if (result != Attempt::done) wrong = message;
    if (wrong) return refuse(number, wrong);
    add_in_flight(worker, 1);
    const bool known = worker->mirror->knows(search.key);
    if (known) result = attempt(message, [&] { worker->mirror->submit(&search); });
    if (result != Attempt::done) search.outcome = MirrorSearch::Outcome::failed;
    if (!known || result != Attempt::done) worker->answered.push_back(&search);
    note_failure(result, message, "take in a search");
}

}  // namespace

bool take_searches(Worker* worker) {
    bool any = false;
    uint32 number;
    while (ring_pop(search_ring(own_device), &number)) {
        if (number >= worker->searches.size()) continue;
        SearchSlot* slot = service_slot(own_device, static_cast<int>(number));
        pg_atomic_exchange_u32(&slot->queued, 0);
        // In hand already: its answer will free the slot.
        if (pg_atomic_read_u32(in_hand(own_device, static_cast<int>(number))) != 0) continue;
        if (!change_state(slot, SlotState::submitted, SlotState::running)) {
            // A slot that is not in hand is neither running nor abandoned.
            const uint32 state = pg_atomic_read_u32(&slot->state);
            if (state != static_cast<uint32>(SlotState::free) &&
                state != static_cast<uint32>(SlotState::submitted) &&
                state != static_cast<uint32>(SlotState::done))
                free_slot(slot);
            continue;
        }
        any = true;
        pg_atomic_write_u32(in_hand(own_device, static_cast<int>(number)), 1);
        if (*static_cast<volatile uint32*>(&slot->k) == 0)
            report_resident(worker, number);
        else
            take_search(worker, number);
    }
    return any;
}

namespace {

// Answers finished searches. False: there were none.
bool answer_searches(Worker* worker) {
    if (worker->answered.empty()) return false;
    for (const MirrorSearch* search : worker->answered) {
        const auto number = static_cast<uint32>(search - worker->searches.data());
        SearchSlot* slot = service_slot(own_device, static_cast<int>(number));
        const bool unknown = search->outcome == MirrorSearch::Outcome::unknown;
        slot->outcome = unknown ? outcome_of_unknown(worker, search->key) : search->outcome;
        slot->bring_model = unknown && wants_model(worker, search->key);
        slot->found_count = search->found_count;
        slot->taken = search->taken;
        slot->probed_count = search->probed_count;
        slot->complete = search->complete;
        slot->names_outdated = search->outdated.version.resident;
        // The search owns the block, whatever the slot says by now.
        slot->block = worker->in_hand[number].block;
        if (search->outdated.version.resident)
            service_block(own_device, worker->in_hand[number].block)->outdated = search->outdated;
        slot->searched = search->searched;
        slot->left_out = search->left_out;
    }
    // Before the answers: a search that its backend has seen answered is not counted.
    add_in_flight(worker, -static_cast<int>(worker->answered.size()));
    answer_all(worker, &worker->answered);
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
        result = attempt(message, [&] { started = worker->mirror->start_next(most_at_once); });
        // The searches of a batch that failed to start need their answers, too.
        started |= result != Attempt::done;
        any |= started;
        note_failure(result, message, "start a batch");
    }
    return any;
}

}  // namespace pgwarp
