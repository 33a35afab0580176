// Searches of a mirror: from their queues to batches, and from batches to answers.
//
// Searches wait in lanes, one for each index and class of k and probes, plain, refined or narrowed,
// so that no search shares a batch with one that takes much longer. Of the lanes that may start a
// batch, the one whose first search has waited longest comes first: no index starves another. Each
// batch is answered when it is done, whatever else runs.

#include "kernels/host/mirror_served.h"

#include <cstring>
#include <utility>
#include <exception>

namespace pgwarp {

namespace {

// When a search runs out of device memory, the mirror evicts an eighth of the resident bytes and
// lowers its budget to the rest (shrink_budget). Batches that succeed raise the budget again, by an
// eighth of the full budget over this many batches: slowly, so that few searches fail for it.
constexpr size_t budget_batches = 4096;
// A lane that was not used for this many turns of the clock frees its batches.
constexpr uint64_t idle_lane = 8192;
// While a batch of the lane runs, the next one needs at least 1/min_part as many searches. Fewer
// searches wait for more, because a batch of any size costs device and caller about the same.
constexpr size_t min_part = 4;
// After this time collect() blocks on the batch, so that a watchdog of this thread sees a device
// that hangs.
constexpr std::chrono::seconds patience(5);

// Rounds sizes up in steps, so that later searches can reuse a batch's memory.
uint32_t step_up(uint32_t wanted, uint32_t least) {
    uint32_t size = least;
    while (size < wanted) size *= 2;
    return size;
}

// A device changes to slower kernels above k = 112 and k = 1024.
size_t class_of(const MirrorSearch& search, uint32_t lists) {
    const uint32_t k = search.k, probes = std::min(search.probes, lists);
    const size_t by_k = k <= 112 ? 0 : k <= 1024 ? 1 : 2;
    const size_t by_probes = probes <= 64 ? 0 : probes <= 256 ? 1 : 2;
    const size_t kind = search.narrowed ? 2 : search.refined_k > 0 ? 1 : 0;
    return kind * (shape_classes / 3) + by_k * 3 + by_probes;
}

// Writes a search to its place in a batch that has room for it.
void fill_query(ListBatch& batch, size_t at, const MirrorSearch& search,
                const QuantizerShape& shape) {
    const PackedConditions& conditions = search.conditions;
    std::copy_n(search.query, shape.dims, batch.queries + at * shape.dims);
    ListQuery& wanted = batch.wanted[at];
    wanted = {.k = std::clamp(search.k, 1u, max_list_k),
              .probes = std::clamp(search.probes, 1u, shape.lists),
              .first_probe = search.first_probe,
              .conditions = conditions.count,
              .near_k = std::min(search.near_k, search.k),
              .floor_id = search.floor.id,
              .floor_distance = search.floor.distance};
    if (search.threshold > 0 && !batch.shape.narrowed) {
        wanted.threshold = search.threshold;
        wanted.radius_k = std::clamp(search.radius_k, 1u, wanted.k);
        wanted.first_entries = search.first_entries;
        wanted.first_lists = search.first_lists;
        wanted.wider_k = std::min(search.wider_k, wanted.k);
    }
    if (batch.shape.refined) wanted.refined_k = std::clamp(search.refined_k, 1u, wanted.k);
    std::copy_n(conditions.items, conditions.count, batch.conditions + at * batch.shape.conditions);
    std::copy_n(conditions.values, conditions.value_count, batch.values + at * batch.shape.values);
}

}  // namespace

ListBatch& Mirror::Running::batch() const {
    return *served->lanes[lane].slots[slot].batch;
}

void Mirror::submit(MirrorSearch* search) {
    search->found_count = search->probed_count = 0;
    search->complete = false;
    search->outdated = {};
    const auto at = served_.find(name_of(search->key.database, search->key.index));
    if (at == served_.end() || !(at->second->key == search->key) ||
        at->second->shape.dims != search->dims) {
        search->outcome = MirrorSearch::Outcome::unknown;
        answered_.push_back(search);
        return;
    }
    search->outcome = MirrorSearch::Outcome::failed;
    const std::shared_ptr<Served>& served = at->second;
    if (!(search->range == served->range)) served->set_range(search->range);
    const size_t number = class_of(*search, served->shape.lists);
    Served::Lane& lane = served->lanes[number];
    if (lane.waiting.empty()) waiting_.push_back({served, number});
    try {
        lane.waiting.push_back({++last_ticket_, search});
    } catch (...) {
        if (lane.waiting.empty()) waiting_.pop_back();
        throw;
    }
}

void Mirror::reserve_answers() {
    size_t count = answered_.size();
    for (const WaitingLane& lane : waiting_) count += lane.served->lanes[lane.lane].waiting.size();
    for (const Running& running : running_) count += running.searches.size();
    answered_.reserve(count);
}

// Answers all waiting searches of an index that is being forgotten or evicted. The caller has
// reserved room for the answers.
void Mirror::dismiss(Served& served) noexcept {
    for (Served::Lane& lane : served.lanes) {
        for (const Served::Lane::Waiting& waiting : lane.waiting) {
            waiting.search->outcome = MirrorSearch::Outcome::unknown;
            answered_.push_back(waiting.search);
        }
        lane.waiting.clear();
    }
    std::erase_if(waiting_, [&](const WaitingLane& lane) { return lane.served.get() == &served; });
}

bool Mirror::may_start(const WaitingLane& waiting) const {
    if (waiting.served->running >= most_of_index) return false;
    const Served::Lane& lane = waiting.served->lanes[waiting.lane];
    bool room = false;
    for (const LaneSlot& slot : lane.slots) {
        room |= slot.running == 0;
        if (lane.waiting.size() * min_part < slot.running) return false;
    }
    return room;
}

bool Mirror::start_next(size_t most_searches) {
    if (running_.size() >= most_batches) return false;
    auto next = waiting_.end();
    uint64_t first = 0;
    for (auto at = waiting_.begin(); at != waiting_.end(); ++at) {
        if (!may_start(*at)) continue;
        const uint64_t ticket = at->served->lanes[at->lane].waiting.front().ticket;
        if (next != waiting_.end() && ticket > first) continue;
        next = at;
        first = ticket;
    }
    if (next == waiting_.end()) return false;
    const WaitingLane chosen = *next;
    std::vector<Served::Lane::Waiting>& waiting = chosen.served->lanes[chosen.lane].waiting;
    const size_t count = std::min(waiting.size(), std::max<size_t>(most_searches, 1));
    std::vector<MirrorSearch*> searches(count);
    reserve_answers();
    for (size_t i = 0; i < count; ++i) searches[i] = waiting[i].search;
    waiting.erase(waiting.begin(), waiting.begin() + static_cast<ptrdiff_t>(count));
    if (waiting.empty()) waiting_.erase(next);
    std::exception_ptr failure;
    try {
        start_batch(chosen, searches);
    } catch (...) {
        answered_.insert(answered_.end(), searches.begin(), searches.end());
        note_failure(*chosen.served, &failure);
    }
    if (failure) std::rethrow_exception(failure);
    return true;
}

void Mirror::start_batch(const WaitingLane& where, const std::vector<MirrorSearch*>& searches) {
    Served& served = *where.served;
    Served::Lane& lane = served.lanes[where.lane];
    ListBatchShape shape{searches.size(), 1, 1};
    for (const MirrorSearch* search : searches) {
        shape.k = std::max(shape.k, std::clamp(search->k, 1u, max_list_k));
        shape.probes = std::max(shape.probes, std::min(search->probes, served.shape.lists));
        shape.narrowed |= search->narrowed;
        shape.refined |= search->refined_k > 0 && !search->narrowed;
        shape.conditions = std::max(shape.conditions, search->conditions.count);
        shape.values = std::max(shape.values, search->conditions.value_count);
    }
    size_t number = 0;
    while (lane.slots[number].running != 0) ++number;
    LaneSlot& slot = lane.slots[number];
    served.last_used = lane.last_used = clock_ + 1;
    const auto start = [&] {
        make_batch(served, slot, shape);
        ListBatch& batch = *slot.batch;
        for (size_t i = 0; i < searches.size(); ++i)
            fill_query(batch, i, *searches[i], served.shape);
        served.store->start(batch, searches.size());
    };
    running_.push_back({where.served, served.versions, is_complete(served), served.range,
                        where.lane, number, searches, std::chrono::steady_clock::now()});
    try {
        try {
            start();
        } catch (const OutOfDeviceMemory&) {
            if (!free_idle_batches()) throw;
            start();
        }
    } catch (...) {
        running_.pop_back();
        throw;
    }
    slot.running = searches.size();
    ++served.running;
    ++served.use.batches;
    served.use.batch_queries += searches.size();
}

// Makes sure that the slot's batch has room for the shape; replaces the batch if it is too small.
void Mirror::make_batch(Served& served, LaneSlot& slot, const ListBatchShape& shape) {
    const ListBatchShape before = slot.batch ? slot.batch->shape : ListBatchShape{};
    if (slot.batch && before.holds(shape)) return;
    slot.batch = nullptr;
    const auto wider = [](uint32_t wanted, uint32_t least, uint32_t had) {
        return wanted == 0 ? had : std::max(step_up(wanted, least), had);
    };
    slot.batch = served.store->make_batch(
        {std::max<size_t>(step_up(static_cast<uint32_t>(shape.queries), 16), before.queries),
         std::min(wider(shape.k, 16, before.k), max_list_k), wider(shape.probes, 16, before.probes),
         shape.narrowed, wider(shape.conditions, 4, before.conditions),
         wider(shape.values, 4, before.values), shape.refined});
}

// Frees the memory of batches that are not running. False: there were none.
bool Mirror::free_idle_batches() {
    bool any = false;
    for (const auto& [name, served] : served_)
        for (Served::Lane& lane : served->lanes)
            for (LaneSlot& slot : lane.slots) {
                if (!slot.batch || slot.running != 0) continue;
                slot.batch = nullptr;
                any = true;
            }
    return any;
}

void Mirror::finish_batch(Running& running) {
    Served& served = *running.served;
    ListBatch& batch = running.batch();
    served.store->wait(batch);
    ++clock_;
    bool asked = false;  // for a list, whether there is one or not
    for (size_t i = 0; i < running.searches.size(); ++i) {
        MirrorSearch& search = *running.searches[i];
        const uint32_t* probed = batch.probed + i * batch.probed_stride;
        const uint32_t probes = std::min(batch.taken[i], batch.wanted[i].probes);
        const uint64_t use = ++uses_;
        // An answer that named a list twice would return its rows twice.
        if (batch.found_counts[i] > batch.wanted[i].k ||
            std::any_of(probed, probed + probes, [&](uint32_t list) {
                return list >= served.shape.lists ||
                       std::exchange(served.list_used[list], use) == use;
            })) {
            // Distances that overflow have no order, and may cause such an answer. The other
            // answers of the batch are valid.
            search.outcome = MirrorSearch::Outcome::failed;
            ++served.use.errors;
            continue;
        }
        search.found_count = batch.found_counts[i];
        search.taken = probes;
        std::memcpy(search.found, batch.found + i * batch.found_stride,
                    search.found_count * sizeof(Neighbor));
        if (batch.shape.narrowed) search.searched = batch.searched[i];
        if (batch.shape.refined) search.left_out = batch.left_out[i];
        const uint32_t first = std::min(batch.wanted[i].first_probe, probes);
        name_lists(running, {probed + first, probes - first}, search);
        if (!running.complete && !asked) {
            search.outdated = next_outdated(served);
            asked = true;
        }
        search.outcome = MirrorSearch::Outcome::found;
    }
}

void Mirror::name_lists(const Running& running, std::span<const uint32_t> lists,
                        MirrorSearch& search) {
    const MirrorVersion* versions = running.versions->data();
    search.complete = running.complete && search.range == running.range && !search.wants_versions;
    search.probed_count = 0;
    if (search.complete && !search.narrowed) return;
    for (const uint32_t list : lists) {
        const uint32_t at = search.probed_count++;
        if (search.complete) {
            search.lists[at] = list_and_generation(list, versions[list]);
            continue;
        }
        const bool wanted = !versions[list].resident && wants(*running.served, list);
        search.probed[at] = {list, wanted, versions[list]};
    }
}

void Mirror::collect(std::vector<MirrorSearch*>* answered) {
    // Reserve now: from here on, adding an answer must not allocate.
    reserve_answers();
    answered->reserve(answered->size() + answered_.capacity());
    std::exception_ptr failure;
    for (size_t i = 0; i < running_.size();) {
        bool over = true;
        try {
            over = running_[i].served->store->done(running_[i].batch()) ||
                   std::chrono::steady_clock::now() - running_[i].since > patience;
        } catch (...) {
            // finish_batch() throws it again.
        }
        if (!over) {
            ++i;
            continue;
        }
        Running running = std::move(running_[i]);
        running_.erase(running_.begin() + static_cast<ptrdiff_t>(i));
        Served& served = *running.served;
        try {
            finish_batch(running);
            failures_in_a_row_ = 0;
            budget_ = std::min(full_budget_, budget_ + full_budget_ / (8 * budget_batches) + 1);
        } catch (...) {
            note_failure(served, &failure);
        }
        served.lanes[running.lane].slots[running.slot].running = 0;
        --served.running;
        for (Served::Lane& lane : served.lanes)
            for (LaneSlot& slot : lane.slots)
                if (slot.running == 0 && lane.last_used + idle_lane < clock_) slot.batch = nullptr;
        answered_.insert(answered_.end(), running.searches.begin(), running.searches.end());
    }
    answered->insert(answered->end(), answered_.begin(), answered_.end());
    answered_.clear();
    if (failure) std::rethrow_exception(failure);
}

// Called inside a catch block. Searches of the batch stay marked as failed; other batches continue.
// The caller throws *failure after them. A lost device replaces any other failure there.
void Mirror::note_failure(Served& served, std::exception_ptr* failure) noexcept {
    // A device on which this many batches in a row fail is not going to recover.
    constexpr int enough = 16;
    const auto note = [&](const char* message) {
        const bool lost = ++failures_in_a_row_ >= enough;
        if (lost || !*failure) *failure = std::make_exception_ptr(DeviceFailure(message, lost));
    };
    ++served.use.errors;
    try {
        try {
            throw;
        } catch (const OutOfDeviceMemory&) {
            shrink_budget();
        } catch (const DeviceFailure& thrown) {
            // Keep the exception itself: a new one would need memory.
            if (thrown.lost)
                *failure = std::current_exception();
            else
                note(thrown.what());
        } catch (const std::bad_alloc&) {
            // Out of host memory: says nothing about the device.
            if (!*failure) *failure = std::current_exception();
        } catch (const std::exception& thrown) {
            note(thrown.what());
        } catch (...) {
            note("unknown exception");
        }
    } catch (...) {
        // No memory for evicting lists, or for the message: the next failure may find some.
        if (!*failure) *failure = std::current_exception();
    }
}

}  // namespace pgwarp
