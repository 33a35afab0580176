// The service's worker: gathers what backends submitted, runs it in batches, answers, and takes in
// the lists they send. Batching needs no timer: while one batch runs, the next one gathers.
//
// Whatever goes wrong on the device ends in an answer "failed", upon which a backend reads its
// pages itself. A device that is lost for this process ends the process; the postmaster starts
// another.

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <exception>
#include <memory>
#include <new>
#include <string>
#include <unordered_map>
#include <vector>

#include "kernels/device.h"
#include "kernels/device_choice.h"
#include "kernels/host_device.h"
#include "kernels/mirror.h"
#include "extension/device_library.h"
#include "extension/service.h"
#include "extension/service_watchdog.h"
#include "extension/settings.h"
#include "extension/stopwatch.h"

extern "C" {
#include "miscadmin.h"
#include "pgstat.h"
#include "postmaster/bgworker.h"
#include "postmaster/interrupt.h"
#include "storage/ipc.h"
#include "storage/latch.h"
#include "storage/proc.h"
#include "utils/guc.h"
#include "utils/timestamp.h"
}

namespace pgwarp {

namespace {

// What comes in parts, from one backend.
struct Assembly {
    MirrorKey key{};
    QuantizerShape shape{};
    std::vector<float> model;
    size_t model_floats = 0;  // received
    uint32 list = 0;
    std::vector<char> pages;  // of what is longer than a load buffer
    uint32 page_count = 0;
    pid_t pid = 0;  // the backend
    TimestampTz last_part = 0;
};

// One device and what is kept on it.
struct Place {
    int number;  // -1: the host
    std::unique_ptr<Device> device;
    std::unique_ptr<Mirror> mirror;  // after the device: it ends first
    TimestampTz empty_since = 0;     // much of its memory; 0: it is not
};

struct Worker {
    std::vector<Place> places;
    std::vector<std::string> not_opened;  // why devices are not among them
    std::vector<MirrorSearch> searches;   // (slots)
    std::vector<MirrorSearch*> answered;
    std::unordered_map<int, Assembly> assemblies;       // by owner
    std::unordered_map<uint64_t, MirrorUse> published;  // by database and index
    std::vector<ListPage> pages;
    MirrorKey wanted_model{};
    TimestampTz model_wanted_at = 0;
    TimestampTz assemblies_checked = 0;

    // There before memory is short.
    void reserve() {
        searches.resize(static_cast<size_t>(service->slots));
        answered.reserve(static_cast<size_t>(service->slots));
    }
    // Whether batches are under way.
    bool waits_for_device() const {
        return std::any_of(places.begin(), places.end(),
                           [](const Place& place) { return place.mirror->busy(); });
    }

    Place* place_of(const MirrorKey& key) {
        for (Place& place : places)
            if (place.mirror->knows(key)) return &place;
        return nullptr;
    }
    void forget(uint32_t database, uint32_t index) {
        for (Place& place : places) place.mirror->forget(database, index);
    }
    Place& emptiest() {
        DeviceLoad loads[most_devices];
        for (size_t i = 0; i < places.size(); ++i) loads[i] = places[i].mirror->load();
        return places[least_loaded({loads, places.size()})];
    }
};

enum class Attempt { done, failed, no_memory, lost };

// Runs what may throw; leaves a message. Nothing of PostgreSQL is called inside.
template <typename Function>
Attempt attempt(char (&message)[256], Function&& function, int patience = 1) {
    const WatchedCall watched(patience);
    try {
        function();
        return Attempt::done;
    } catch (const DeviceFailure& failure) {
        strlcpy(message, failure.what(), sizeof(message));
        return failure.lost ? Attempt::lost : Attempt::failed;
    } catch (const std::bad_alloc& error) {
        strlcpy(message, error.what(), sizeof(message));
        return Attempt::no_memory;
    } catch (const std::exception& error) {
        strlcpy(message, error.what(), sizeof(message));
    } catch (...) {
        strlcpy(message, "unknown exception", sizeof(message));
    }
    return Attempt::failed;
}

// --- devices

size_t memory_budget(size_t otherwise) {
    return settings.device_memory > 0 ? static_cast<size_t>(settings.device_memory) * 1024 * 1024
                                      : otherwise;
}

void add_place(Worker* worker, int number, std::unique_ptr<Device> device) {
    const size_t budget = device->memory().budget;
    device = make_failing_device(std::move(device), &settings.fault);
    // The rest is for models and for what a search needs.
    auto mirror = std::make_unique<Mirror>(*device, budget - budget / 4);
    worker->places.push_back({number, std::move(device), std::move(mirror), 0});
}

std::unique_ptr<Device> open_place(int number, OpenError* error) {
    constexpr size_t host_budget = size_t{1} << 30;
    if (number == host_device)
        return make_host_device(settings.host_threads, memory_budget(host_budget));
    DeviceOptions options;
    options.device = number;
    options.memory_budget = memory_budget(0);
    options.build_share = build_memory();
    return std::unique_ptr<Device>(open_cuda_device(options, error));
}

// Opens what pgwarp.devices names: those of them that are there.
void open_places(Worker* worker) {
    int numbers[most_devices];
    const int count = parse_devices(settings.devices, numbers);
    OpenedDevices opened =
        count > 0 ? open_devices({numbers, static_cast<size_t>(count)}, most_devices, open_place)
                  : open_all_devices(most_devices, open_place);
    for (OpenedDevice& device : opened.devices)
        add_place(worker, device.number, std::move(device.device));
    worker->not_opened = std::move(opened.failures);
}

// --- answering

void wake(uint32 slot_number) {
    SetLatch(&ProcGlobal->allProcs[slot_number].procLatch);
}

void answer(uint32 number) {
    SearchSlot* slot = service_slot(static_cast<int>(number));
    if (change_state(slot, SlotState::running, SlotState::done)) {
        wake(number);
    } else {
        give_block_back(slot);
        pg_atomic_write_u32(&slot->state, static_cast<uint32>(SlotState::free));
    }
}

void publish(Worker* worker, const MirrorKey& key, const MirrorUse& use) {
    IndexStatistics* statistics = find_statistics(key.database, key.index);
    if (!statistics) return;
    MirrorUse* published = nullptr;
    char message[256];
    attempt(message,
            [&] { published = &worker->published[uint64_t{key.database} << 32 | key.index]; });
    if (!published) return;
    MirrorUse& before = *published;
    // A mirror that took the index in anew counts from nought.
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
    pg_atomic_write_u64(&counters[counter_lists], use.lists);
    pg_atomic_write_u64(&counters[counter_resident_lists], use.resident_lists);
    pg_atomic_write_u64(&counters[counter_bytes], use.bytes);
    before = use;
}

void publish_use(Worker* worker, const MirrorKey& key) {
    const Place* place = worker->place_of(key);
    publish(worker, key, place ? *place->mirror->use(key) : MirrorUse{});
}

// Of indexes that have lost lists to others.
void publish_changes(Worker* worker) {
    for (const Place& place : worker->places) {
        std::vector<MirrorChange> changes;
        char message[256];
        attempt(message, [&] { changes = place.mirror->take_changes(); });
        for (const MirrorChange& change : changes) publish(worker, change.key, change.use);
    }
}

void publish_devices(const Worker* worker) {
    int count = 0;
    for (const Place& place : worker->places) {
        DeviceInfo& info = service->device[count++];
        const DeviceMemoryUse memory = place.device->memory();
        info.number = place.number;
        strlcpy(info.name, place.device->name(), sizeof(info.name));
        info.memory_budget = static_cast<int64>(memory.budget);
        info.memory_used = static_cast<int64>(memory.used);
        info.memory_reserved = static_cast<int64>(memory.reserved);
    }
    service->devices = count;
}

[[noreturn]] void end_for_lost_device(const char* message) {
    note_service_failure(message);
    service->failure_unsaid = false;
    ereport(LOG, (errmsg("pgwarp service ends: %s", message),
                  errdetail("It starts again; until then sessions read the index pages.")));
    proc_exit(1);
}

// A worker that fails does so many times a second: the log has one line in a while, and how many
// failures had none.
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

void tell_resident(Worker* worker, uint32 number) {
    SearchSlot* slot = service_slot(static_cast<int>(number));
    const Place* place = worker->place_of(slot->key);
    slot->outcome = MirrorSearch::Outcome::found;
    slot->found_count = place ? place->mirror->use(slot->key)->resident_lists : 0;
    slot->probed_count = 0;
    answer(number);
}

// Hands what is in the ring to the mirrors. False: there was nothing.
bool take_searches(Worker* worker) {
    bool any = false;
    uint32 number;
    while (ring_pop(search_ring(), &number)) {
        SearchSlot* slot = service_slot(static_cast<int>(number));
        pg_atomic_exchange_u32(&slot->queued, 0);
        if (!change_state(slot, SlotState::submitted, SlotState::running)) continue;
        any = true;
        if (slot->k == 0) {
            tell_resident(worker, number);
            continue;
        }
        MirrorSearch& search = worker->searches[number];
        search = {};
        search.key = slot->key;
        SearchBlock* block = service_block(slot->block);
        search.query = block->query;
        search.dims = slot->dims;
        search.k = slot->k;
        search.probes = slot->probes;
        search.found = block->found;
        search.probed = block->probed;
        search.outcome = MirrorSearch::Outcome::unknown;
        Place* place = worker->place_of(search.key);
        char message[256];
        Attempt result = Attempt::done;
        if (place) result = attempt(message, [&] { place->mirror->submit(&search); });
        if (result != Attempt::done) search.outcome = MirrorSearch::Outcome::failed;
        if (!place || result != Attempt::done) worker->answered.push_back(&search);
        note_failure(result, message, "take in a search");
    }
    return any;
}

// One backend at a time is asked for a model; where that came to nothing, another after a while.
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

// Answers the searches that are through. False: there were none.
bool answer_searches(Worker* worker) {
    if (worker->answered.empty()) return false;
    for (const MirrorSearch* search : worker->answered) {
        const auto number = static_cast<uint32>(search - worker->searches.data());
        SearchSlot* slot = service_slot(static_cast<int>(number));
        slot->outcome = search->outcome;
        slot->bring_model = slot->outcome == MirrorSearch::Outcome::unknown &&
                            may_ask_for_model(worker, search->key);
        slot->found_count = search->found_count;
        slot->probed_count = search->probed_count;
        answer(number);
    }
    const MirrorKey* last = nullptr;
    for (const MirrorSearch* search : worker->answered) {
        if (!last || !(*last == search->key)) publish_use(worker, search->key);
        last = &search->key;
    }
    publish_changes(worker);
    worker->answered.clear();
    pg_atomic_fetch_add_u32(&service->turns, 1);
    return true;
}

// Answers what is done and starts what may start, one batch after the other: where the host is the
// device, a batch is done when it is started, and its searches do not wait for the next one. False:
// there was nothing to do.
bool run_batches(Worker* worker) {
    bool any = answer_searches(worker);
    for (Place& place : worker->places)
        for (bool started = true; started;) {
            char message[256];
            Attempt result = attempt(message, [&] { place.mirror->collect(&worker->answered); });
            any |= answer_searches(worker);
            note_failure(result, message, "finish a batch");
            started = false;
            result = attempt(message, [&] {
                started = place.mirror->start_next(static_cast<size_t>(settings.max_batch));
            });
            // A batch that failed to start has answers, too.
            started |= result != Attempt::done;
            any |= started;
            note_failure(result, message, "start a batch");
        }
    return any;
}

// --- taking in

void take_model(Worker* worker, const LoadBuffer* buffer) {
    ModelPart part;
    memcpy(&part, buffer->data, sizeof(part));
    Assembly& assembly = worker->assemblies[buffer->owner];
    const QuantizerShape& shape = part.shape;
    const size_t centroid_floats = size_t{shape.lists} * shape.dims;
    const size_t all = centroid_floats + size_t{shape.codebook_rows()} * codewords;
    if (part.first_float == 0) {
        assembly = {};
        assembly.key = buffer->key;
        assembly.shape = shape;
        assembly.model.resize(all);
    }
    // Parts of something that began before this worker did.
    if (!(assembly.key == buffer->key) || assembly.model.size() != all ||
        assembly.model_floats != part.first_float)
        return;
    memcpy(assembly.model.data() + part.first_float, buffer->data + sizeof(part),
           part.floats * sizeof(float));
    assembly.model_floats += part.floats;
    if (assembly.model_floats < all) return;
    if (!worker->place_of(buffer->key)) {
        worker->forget(buffer->key.database, buffer->key.index);
        worker->emptiest().mirror->add(
            buffer->key, {shape, assembly.model.data(), assembly.model.data() + centroid_floats});
    }
    worker->assemblies.erase(buffer->owner);
}

void list_pages(const char* data, size_t bytes, uint32 m, std::vector<ListPage>* out) {
    for (const char* end = data + bytes; data < end;) {
        LoadedPage page;
        memcpy(&page, data, sizeof(page));
        const EntryLayout layout = columns_for(m, page.capacity);
        const char* columns = data + sizeof(page);
        out->push_back({reinterpret_cast<const uint8_t*>(columns), layout.capacity, page.count,
                        reinterpret_cast<const float*>(columns + layout.offsets_at),
                        reinterpret_cast<const uint8_t*>(columns + layout.tids_at)});
        data += loaded_page_bytes(layout);
    }
}

// The last part of a list, or of what was appended to one.
void take_list(Worker* worker, const LoadBuffer* buffer, const ListPart& part, const char* data,
               size_t bytes) {
    Mirror& mirror = *worker->place_of(buffer->key)->mirror;
    worker->pages.clear();
    list_pages(data, bytes, part.m, &worker->pages);
    if (part.from.resident)
        mirror.append(buffer->key, part.list, part.from, part.version, worker->pages);
    else
        mirror.put(buffer->key, part.list, part.version, worker->pages,
                   buffer->kind == LoadKind::whole_index ? Mirror::Victims::other_indexes
                                                         : Mirror::Victims::any);
}

void take_lists(Worker* worker, const LoadBuffer* buffer) {
    if (!worker->place_of(buffer->key)) {
        worker->assemblies.erase(buffer->owner);
        return;
    }
    for (uint32 at = 0; at < buffer->bytes;) {
        ListPart part;
        memcpy(&part, buffer->data + at, sizeof(part));
        const char* data = buffer->data + at + sizeof(part);
        at += static_cast<uint32>(sizeof(part) + part.bytes);
        if (part.first_page == 0 && part.last) {
            take_list(worker, buffer, part, data, part.bytes);
            continue;
        }
        Assembly& assembly = worker->assemblies[buffer->owner];
        if (part.first_page == 0) {
            assembly = {};
            assembly.key = buffer->key;
            assembly.list = part.list;
        }
        // A part was lost: so is the list.
        if (!(assembly.key == buffer->key) || assembly.list != part.list ||
            assembly.page_count != part.first_page) {
            worker->assemblies.erase(buffer->owner);
            continue;
        }
        assembly.pages.insert(assembly.pages.end(), data, data + part.bytes);
        assembly.page_count += part.pages;
        if (!part.last) continue;
        take_list(worker, buffer, part, assembly.pages.data(), assembly.pages.size());
        worker->assemblies.erase(buffer->owner);
    }
}

// One load buffer. False: there was none.
bool take_load(Worker* worker) {
    uint32 number;
    if (!ring_pop(load_ring(), &number)) return false;
    LoadBuffer* buffer = service_load_buffer(static_cast<int>(number));
    char message[256];
    const Attempt result = attempt(message, [&] {
        switch (buffer->kind) {
            case LoadKind::model:
                take_model(worker, buffer);
                break;
            case LoadKind::lists:
            case LoadKind::whole_index:
                take_lists(worker, buffer);
                break;
        }
    });
    if (result != Attempt::done) worker->assemblies.erase(buffer->owner);
    const auto assembly = worker->assemblies.find(buffer->owner);
    if (assembly != worker->assemblies.end()) {
        assembly->second.pid = buffer->owner_pid;
        assembly->second.last_part = GetCurrentTimestamp();
    }
    publish_changes(worker);
    publish_use(worker, buffer->key);
    // What was read must have been read before somebody else writes there.
    pg_memory_barrier();
    pg_atomic_write_u32(&buffer->state, static_cast<uint32>(LoadState::free));
    ConditionVariableBroadcast(&service->load_freed);
    pg_atomic_fetch_add_u32(&service->turns, 1);
    note_failure(result, message, "take in a list");
    return true;
}

constexpr int assembly_patience_ms = 60 * 1000;

// Drops what was sent by half, where the backend has ended or sends no more of it.
void drop_stale_assemblies(Worker* worker) {
    constexpr int interval_ms = 1000;
    const TimestampTz now = GetCurrentTimestamp();
    if (worker->assemblies.empty() ||
        !TimestampDifferenceExceeds(worker->assemblies_checked, now, interval_ms))
        return;
    worker->assemblies_checked = now;
    std::erase_if(worker->assemblies, [now](const auto& item) {
        const Assembly& assembly = item.second;
        const bool ended = kill(assembly.pid, 0) != 0 && errno == ESRCH;
        if (!ended && !TimestampDifferenceExceeds(assembly.last_part, now, assembly_patience_ms))
            return false;
        ereport(DEBUG1, (errmsg_internal("pgwarp service drops what was sent by half: %zu bytes",
                                         assembly.pages.capacity() +
                                             assembly.model.capacity() * sizeof(float))));
        return true;
    });
}

// Memory that stands empty goes back to the device after a while, for others to have: an index that
// was dropped is often followed by another. A little stays, so that not every change takes and
// gives memory. True: there is something to give back later.
bool give_back_empty(Worker* worker) {
    constexpr int patience_ms = 3000;
    constexpr size_t most_kept = size_t{256} << 20;
    bool later = false;
    for (Place& place : worker->places) {
        const DeviceMemoryUse use = place.device->memory();
        const size_t kept = std::min(most_kept, use.budget / 16);
        if (use.empty <= kept) {
            place.empty_since = 0;
            continue;
        }
        const TimestampTz now = GetCurrentTimestamp();
        if (place.empty_since == 0) place.empty_since = now;
        if (!TimestampDifferenceExceeds(place.empty_since, now, patience_ms)) {
            later = true;
            continue;
        }
        char message[256];
        attempt(message, [&] { place.device->trim(kept); });
        place.empty_since = 0;
        publish_devices(worker);
    }
    return later;
}

// Indexes that are gone. False: there were none.
bool take_forgets(Worker* worker) {
    Forget forget;
    bool some = false;
    for (; take_forget(&forget); some = true) {
        char message[256];
        note_failure(attempt(message, [&] { worker->forget(forget.database, forget.index); }),
                     message, "forget an index");
    }
    return some;
}

// --- the worker's life

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
    while (ring_pop(load_ring(), &number))
        pg_atomic_write_u32(&service_load_buffer(static_cast<int>(number))->state,
                            static_cast<uint32>(LoadState::free));
    ConditionVariableBroadcast(&service->load_freed);
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
    while (!ShutdownRequestPending) {
        ResetLatch(MyLatch);
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
        if (!busy && !polls) {
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
