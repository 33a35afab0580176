// Searches of a mirror: from their queues to batches, and from batches to answers.
//
// Searches wait in lanes, one for each index and class of k and probes, plain, refined or filtered,
// so that no search shares a batch with one that takes much longer. Of the lanes that may start a
// batch, the one whose first search has waited longest comes first: no index starves another. Each
// batch is answered when it is done, whatever else runs.
//
// Lanes with few searches share batches, where their stores mix: a query of a table with many
// partitions has a search for each, and starting a batch takes a device as long for one search as
// for many.

#include "kernels/host/mirror_served.h"

#include <cstring>
#include <utility>
#include <exception>
#include <stdexcept>

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
constexpr std::chrono::seconds poll_time(5);

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
    const size_t kind = search.filtered ? 2 : search.refined_k > 0 ? 1 : 0;
    return kind * (shape_classes / 3) + by_k * 3 + by_probes;
}

// Whether searches of the class may share a batch with those of other indexes: few candidates and
// few lists, not filtered.
bool may_mix(size_t shape_class) {
    const size_t kind = shape_class / (shape_classes / 3),
                 in_kind = shape_class % (shape_classes / 3);
    return kind < 2 && in_kind < 2;
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
              .floor_id = search.floor.id,
              .floor_distance = search.floor.distance};
    if (search.plan.threshold > 0) {
        wanted.plan = search.plan;
        wanted.plan.k = std::clamp(search.plan.k, 1u, wanted.k);
    }
    if (batch.shape.refined) wanted.refined_k = std::clamp(search.refined_k, 1u, wanted.k);
    std::copy_n(conditions.items, conditions.count, batch.conditions + at * batch.shape.conditions);
    std::copy_n(conditions.values, conditions.value_count, batch.values + at * batch.shape.values);
}

}  // namespace

size_t Mirror::Running::searches() const {
    size_t count = 0;
    for (const Part& part : parts) count += part.searches.size();
    return count;
}

ListStore& Mirror::Running::store() const {
    return *parts.front().served->store;
}

ListBatch& Mirror::Running::batch() const {
    return *slot->batch;
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
    for (const Running& running : running_) count += running.searches();
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

// Counts batches of all indexes of the family, mixed or not.
bool Mirror::may_start(const Group& group) const {
    size_t batches = 0;
    for (const Running& running : running_) {
        if (group.family == 0) break;
        if (running.family != group.family || running.lane != group.lane) continue;
        if (group.searches * min_part < running.slot->running) return false;
        ++batches;
    }
    return batches < most_of_family && (group.mixed() || may_start(*group.lanes.front()));
}

std::vector<Mirror::Group> Mirror::waiting_groups() const {
    std::vector<Group> groups;
    for (const WaitingLane& waiting : waiting_) {
        const Served::Lane& lane = waiting.served->lanes[waiting.lane];
        const size_t count = lane.waiting.size();
        const uint64_t family =
            count < least_alone && may_mix(waiting.lane) ? waiting.served->family : 0;
        auto group = std::find_if(groups.begin(), groups.end(), [&](const Group& g) {
            return family != 0 && g.family == family && g.lane == waiting.lane;
        });
        if (group == groups.end())
            group = groups.insert(groups.end(), {.family = family, .lane = waiting.lane});
        group->searches += count;
        group->lanes.push_back(&waiting);
        // First the lane whose search has waited longest: a batch may not take them all.
        if (lane.waiting.front().ticket < group->ticket) {
            group->ticket = lane.waiting.front().ticket;
            std::swap(group->lanes.front(), group->lanes.back());
        }
    }
    return groups;
}

std::vector<Mirror::Part> Mirror::take_parts(const Group& group, size_t most_searches) {
    std::vector<Part> parts;
    size_t left = std::max<size_t>(most_searches, 1);
    if (group.mixed()) left = std::min(left, most_mixed);
    parts.reserve(group.lanes.size());
    for (const WaitingLane* from : group.lanes) {
        if (left == 0) break;
        Served& served = *from->served;
        std::vector<Served::Lane::Waiting>& waiting = served.lanes[group.lane].waiting;
        const size_t count = std::min(waiting.size(), left);
        Part& part = parts.emplace_back(
            Part{from->served, served.versions, is_complete(served), served.range, {}});
        part.searches.reserve(count);
        for (size_t i = 0; i < count; ++i) part.searches.push_back(waiting[i].search);
        left -= count;
    }
    // Nothing throws from here on.
    for (const Part& part : parts) {
        std::vector<Served::Lane::Waiting>& waiting = part.served->lanes[group.lane].waiting;
        waiting.erase(waiting.begin(),
                      waiting.begin() + static_cast<ptrdiff_t>(part.searches.size()));
    }
    std::erase_if(waiting_, [](const WaitingLane& lane) {
        return lane.served->lanes[lane.lane].waiting.empty();
    });
    return parts;
}

bool Mirror::start_next(size_t most_searches) {
    if (running_.size() >= most_batches || waiting_.empty()) return false;
    const std::vector<Group> groups = waiting_groups();
    const Group* next = nullptr;
    for (const Group& group : groups)
        if ((!next || group.ticket < next->ticket) && may_start(group)) next = &group;
    if (!next) return false;
    reserve_answers();
    std::vector<Part> parts = take_parts(*next, most_searches);
    std::exception_ptr failure;
    try {
        try {
            start_batch(*next, parts);
        } catch (const std::logic_error&) {
            // A store that cannot be searched would fail the searches of others again.
            for (const Part& part : parts) part.served->family = 0;
            throw;
        }
    } catch (...) {
        for (const Part& part : parts)
            answered_.insert(answered_.end(), part.searches.begin(), part.searches.end());
        note_failure(parts, &failure);
    }
    if (failure) std::rethrow_exception(failure);
    return true;
}

// There is a free slot, as may_start() has checked.
Mirror::LaneSlot& Mirror::free_slot(const Group& group, Served& first) {
    const auto first_free = [](auto& slots) -> LaneSlot& {
        return *std::find_if(std::begin(slots), std::end(slots),
                             [](const LaneSlot& slot) { return slot.running == 0; });
    };
    if (!group.mixed()) {
        first.lanes[group.lane].last_used = clock_ + 1;
        return first_free(first.lanes[group.lane].slots);
    }
    const auto same = [&](const auto& lane) {
        return lane->lane == group.lane && lane->dims == first.shape.dims &&
               std::any_of(std::begin(lane->slots), std::end(lane->slots),
                           [](const LaneSlot& slot) { return slot.running == 0; });
    };
    auto at = std::find_if(mixed_.begin(), mixed_.end(), same);
    if (at == mixed_.end()) {
        mixed_.push_back(std::make_unique<MixedLane>());
        at = mixed_.end() - 1;
        (*at)->lane = group.lane;
        (*at)->dims = first.shape.dims;
    }
    (*at)->last_used = clock_ + 1;
    return first_free((*at)->slots);
}

void Mirror::start_batch(const Group& group, std::vector<Part>& parts) {
    const bool mixed = group.mixed();
    ListBatchShape shape{0, 1, 1};
    shape.mixed = mixed;
    for (const Part& part : parts) {
        shape.queries += part.searches.size();
        part.served->last_used = clock_ + 1;
        for (const MirrorSearch* search : part.searches) {
            shape.k = std::max(shape.k, std::clamp(search->k, 1u, max_list_k));
            shape.probes =
                std::max(shape.probes, std::min(search->probes, part.served->shape.lists));
            shape.filtered |= search->filtered;
            shape.refined |= search->refined_k > 0 && !search->filtered;
            shape.conditions = std::max(shape.conditions, search->conditions.count);
            shape.values = std::max(shape.values, search->conditions.value_count);
        }
    }
    running_.reserve(most_batches);
    LaneSlot& slot = free_slot(group, *parts.front().served);
    ListStore& store = *parts.front().served->store;
    const auto start = [&] {
        make_batch(store, slot, shape);
        ListBatch& batch = *slot.batch;
        batch.stores.clear();
        size_t at = 0;
        for (const Part& part : parts)
            for (const MirrorSearch* search : part.searches) {
                fill_query(batch, at++, *search, part.served->shape);
                if (mixed) batch.stores.push_back(part.served->store.get());
            }
        store.start(batch, at);
    };
    const auto now = std::chrono::steady_clock::now();
    try {
        start();
    } catch (const OutOfDeviceMemory&) {
        if (!free_idle_batches()) throw;
        start();
    }
    slot.running = shape.queries;
    if (!mixed) ++parts.front().served->running;
    for (const Part& part : parts) {
        ++part.served->use.batches;
        part.served->use.batch_queries += part.searches.size();
    }
    running_.push_back({std::move(parts), group.family, mixed, group.lane, &slot, now});
}

// Makes sure that the slot's batch has room for the shape; replaces the batch if it is too small.
void Mirror::make_batch(ListStore& store, LaneSlot& slot, const ListBatchShape& shape) {
    const ListBatchShape before = slot.batch ? slot.batch->shape : ListBatchShape{};
    if (slot.batch && before.holds(shape)) return;
    slot.batch = nullptr;
    const auto wider = [](uint32_t wanted, uint32_t least, uint32_t had) {
        return wanted == 0 ? had : std::max(step_up(wanted, least), had);
    };
    const uint32_t most_k = shape.mixed ? fast_list_k : max_list_k;
    uint32_t probes = wider(shape.probes, 16, before.probes);
    if (shape.mixed) probes = std::min(probes, most_mixed_probes);
    slot.batch = store.make_batch(
        {std::max<size_t>(step_up(static_cast<uint32_t>(shape.queries), 16), before.queries),
         std::min(wider(shape.k, 16, before.k), most_k), probes, shape.filtered,
         wider(shape.conditions, 4, before.conditions), wider(shape.values, 4, before.values),
         shape.refined, shape.mixed});
}

// Frees the memory of batches that are not running. False: there were none.
bool Mirror::free_idle_batches() {
    bool any = false;
    const auto free_slots = [&](auto& slots) {
        for (LaneSlot& slot : slots) {
            if (!slot.batch || slot.running != 0) continue;
            slot.batch = nullptr;
            any = true;
        }
    };
    for (const auto& [name, served] : served_)
        for (Served::Lane& lane : served->lanes) free_slots(lane.slots);
    for (const auto& lane : mixed_) free_slots(lane->slots);
    return any;
}

void Mirror::finish_batch(Running& running) {
    ListBatch& batch = running.batch();
    running.store().wait(batch);
    ++clock_;
    size_t at = 0;
    for (const Part& part : running.parts) {
        bool asked = false;  // for a list, whether there is one or not
        for (MirrorSearch* search : part.searches) {
            take_answer(part, batch, at++, *search);
            if (search->outcome != MirrorSearch::Outcome::found || part.complete || asked) continue;
            search->outdated = next_outdated(*part.served);
            asked = true;
        }
    }
}

void Mirror::take_answer(const Part& part, const ListBatch& batch, size_t at,
                         MirrorSearch& search) {
    Served& served = *part.served;
    const uint32_t* probed = batch.probed + at * batch.probed_stride;
    const uint32_t probes = std::min(batch.taken[at], batch.wanted[at].probes);
    const uint64_t use = ++uses_;
    // An answer that named a list twice would return its rows twice.
    if (batch.found_counts[at] > batch.wanted[at].k ||
        std::any_of(probed, probed + probes, [&](uint32_t list) {
            return list >= served.shape.lists || std::exchange(served.list_used[list], use) == use;
        })) {
        // Distances that overflow have no order, and may cause such an answer. The other answers of
        // the batch are valid.
        search.outcome = MirrorSearch::Outcome::failed;
        ++served.use.errors;
        return;
    }
    search.found_count = batch.found_counts[at];
    search.taken = probes;
    std::memcpy(search.found, batch.found + at * batch.found_stride,
                search.found_count * sizeof(Neighbor));
    if (batch.shape.filtered) search.searched = batch.searched[at];
    if (batch.shape.refined) search.left_out = batch.left_out[at];
    const uint32_t first = std::min(batch.wanted[at].first_probe, probes);
    name_lists(part, {probed + first, probes - first}, search);
    search.outcome = MirrorSearch::Outcome::found;
}

void Mirror::name_lists(const Part& part, std::span<const uint32_t> lists, MirrorSearch& search) {
    const MirrorVersion* versions = part.versions->data();
    search.complete = part.complete && search.range == part.range && !search.wants_versions;
    search.probed_count = 0;
    if (search.complete && !search.filtered) return;
    for (const uint32_t list : lists) {
        const uint32_t at = search.probed_count++;
        if (search.complete) {
            search.lists[at] = list_and_generation(list, versions[list]);
            continue;
        }
        const bool wanted = !versions[list].resident && wants(*part.served, list);
        search.probed[at] = {list, wanted, versions[list]};
    }
}

// Frees the memory of a batch that was not used for long.
void Mirror::free_unused(LaneSlot& slot, uint64_t last_used, uint64_t now) {
    if (slot.running == 0 && last_used + idle_lane < now) slot.batch = nullptr;
}

void Mirror::collect(std::vector<MirrorSearch*>* answered) {
    // Reserve now: from here on, adding an answer must not allocate.
    reserve_answers();
    answered->reserve(answered->size() + answered_.capacity());
    std::exception_ptr failure;
    for (size_t i = 0; i < running_.size();) {
        bool over = true;
        try {
            over = running_[i].store().done(running_[i].batch()) ||
                   std::chrono::steady_clock::now() - running_[i].since > poll_time;
        } catch (...) {
            // finish_batch() throws it again.
        }
        if (!over) {
            ++i;
            continue;
        }
        Running running = std::move(running_[i]);
        running_.erase(running_.begin() + static_cast<ptrdiff_t>(i));
        Served& first = *running.parts.front().served;
        try {
            finish_batch(running);
            failures_in_a_row_ = 0;
            budget_ = std::min(full_budget_, budget_ + full_budget_ / (8 * budget_batches) + 1);
        } catch (...) {
            note_failure(running.parts, &failure);
        }
        running.slot->running = 0;
        if (!running.mixed) --first.running;
        for (const Part& part : running.parts) {
            for (Served::Lane& lane : part.served->lanes)
                for (LaneSlot& slot : lane.slots) free_unused(slot, lane.last_used, clock_);
            answered_.insert(answered_.end(), part.searches.begin(), part.searches.end());
        }
        for (const auto& lane : mixed_)
            for (LaneSlot& slot : lane->slots) free_unused(slot, lane->last_used, clock_);
    }
    answered->insert(answered->end(), answered_.begin(), answered_.end());
    answered_.clear();
    if (failure) std::rethrow_exception(failure);
}

// Called inside a catch block. Searches of the batch stay marked as failed; other batches continue.
// The caller throws *failure after them. A lost device replaces any other failure there.
void Mirror::note_failure(const std::vector<Part>& parts, std::exception_ptr* failure) noexcept {
    // A device on which this many batches in a row fail is not going to recover.
    constexpr int enough = 16;
    const auto note = [&](const char* message) {
        const bool lost = ++failures_in_a_row_ >= enough;
        if (lost || !*failure) *failure = std::make_exception_ptr(DeviceFailure(message, lost));
    };
    for (const Part& part : parts) ++part.served->use.errors;
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
