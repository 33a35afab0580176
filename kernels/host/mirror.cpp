#include "kernels/host/mirror_served.h"
#include "kernels/refinement.h"

#include <algorithm>
#include <exception>
#include <utility>

namespace pgwarp {

namespace {

// When the budget is used up, a new list evicts another. One exchange in this many turns is enough
// to follow the workload, and rare enough not to spend the time on loading.
constexpr uint64_t exchange_interval = 8;
// Bytes of codes, attributes, offsets, TIDs and refinements.
size_t bytes_of(std::span<const ListPage> pages, const QuantizerShape& shape,
                const AttributeLayout& attributes) {
    size_t entries = 0;
    for (const ListPage& page : pages) entries += page.count;
    const size_t refinement = have_refinements(pages) ? refinement_stride(shape.dims) : 0;
    return entries *
           (shape.m + attributes.entry_bytes() + sizeof(float) + sizeof(uint64_t) + refinement);
}

}  // namespace

Mirror::Mirror(Device& device, size_t budget, const ListChangeCounts* counts)
    : device_(device), counts_(counts), full_budget_(budget), budget_(budget) {}

Mirror::~Mirror() {
    for (Running& running : running_) try {
            running.store().wait(running.batch());
        } catch (...) {
            // The batch has ended, and no caller is left to get the failure.
        }
}

Mirror::Served* Mirror::find(const MirrorKey& key) const {
    const auto at = served_.find(name_of(key.database, key.index));
    return at != served_.end() && at->second->key == key ? at->second.get() : nullptr;
}

bool Mirror::knows(const MirrorKey& key) const {
    return find(key) != nullptr;
}

MirrorIndex Mirror::index(const MirrorKey& key) const {
    const Served* served = find(key);
    return served ? MirrorIndex{&served->shape, &served->attributes} : MirrorIndex{};
}

const MirrorUse* Mirror::use(const MirrorKey& key) const {
    const Served* served = find(key);
    return served ? &served->use : nullptr;
}

DeviceLoad Mirror::load() const {
    DeviceLoad load{0, served_.size(), full_budget_};
    for (const auto& [name, served] : served_) load.assigned += served->assigned();
    return load;
}

std::vector<MirrorChange> Mirror::take_changes() {
    if (lists_lost_) {
        for (const auto& [name, served] : served_)
            if (served->lists_lost) changes_.push_back({served->key, served->use});
        for (const auto& [name, served] : served_) served->lists_lost = false;
        lists_lost_ = false;
    }
    return std::exchange(changes_, {});
}

bool Mirror::can_hold(const QuantizerShape& shape) const {
    return device_.store_bytes(shape) <= device_.memory().budget;
}

void Mirror::add(const MirrorKey& key, const Quantizer& model, const AttributeLayout& attributes) {
    if (const DeviceMemoryUse memory = device_.memory(); !can_hold(model.shape))
        throw OutOfDeviceMemory(device_.store_bytes(model.shape), memory.used, memory.budget);
    forget(key.database, key.index);
    auto served = std::make_shared<Served>();
    served->key = key;
    served->shape = model.shape;
    served->attributes = attributes;
    while (!served->store) try {
            served->store = device_.make_list_store(model, attributes);
        } catch (const OutOfDeviceMemory&) {
            if (!give_up_index()) throw;
        }
    if (model.shape.lists <= most_mixed_lists && served->store->mixes_with(*served->store)) {
        const auto mate = std::find_if(served_.begin(), served_.end(), [&](const auto& item) {
            return item.second->family != 0 && served->store->mixes_with(*item.second->store);
        });
        served->family = mate != served_.end() ? mate->second->family : ++last_family_;
    }
    served->last_used = ++clock_;
    served->versions = std::make_shared<Versions>(model.shape.lists);
    served->lists.resize(model.shape.lists);
    served->list_used.resize(model.shape.lists);
    served->changes.resize(model.shape.lists, unknown_changes);
    served->use.lists = model.shape.lists;
    served->set_range({});
    served_[name_of(key.database, key.index)] = std::move(served);
}

void Mirror::forget(uint32_t database, uint32_t index) {
    reserve_answers();
    std::erase_if(served_, [&](const auto& item) {
        const MirrorKey& key = item.second->key;
        if (key.database != database || (index != 0 && key.index != index)) return false;
        bytes_ -= item.second->use.bytes;
        dismiss(*item.second);
        return true;
    });
}

bool Mirror::give_up_index() {
    const auto oldest = std::min_element(
        served_.begin(), served_.end(),
        [](const auto& a, const auto& b) { return a.second->last_used < b.second->last_used; });
    if (oldest == served_.end()) return false;
    reserve_answers();
    MirrorUse last = oldest->second->use;
    last.evictions += last.resident_lists;
    last.lists = last.resident_lists = last.foreign_lists = 0;
    last.bytes = 0;
    changes_.push_back({oldest->second->key, last});
    bytes_ -= oldest->second->use.bytes;
    dismiss(*oldest->second);
    served_.erase(oldest);
    return true;
}

bool Mirror::make_room(size_t wanted, const Served* kept) {
    if (wanted > budget_) return false;
    if (bytes_ + wanted <= budget_) return true;
    struct Resident {
        uint64_t last_used;
        Served* served;
        uint32_t list;
    };
    std::vector<Resident> residents;
    for (const auto& [name, served] : served_)
        for (uint32_t list = 0; served.get() != kept && list < served->shape.lists; ++list)
            if ((*served->versions)[list].resident)
                residents.push_back({served->list_used[list], served.get(), list});
    std::sort(residents.begin(), residents.end(),
              [](const Resident& a, const Resident& b) { return a.last_used < b.last_used; });
    // Frees more than is needed now, so that not every new list sorts all others.
    const size_t enough = std::min(budget_, wanted + budget_ / 16);
    for (const Resident& resident : residents) {
        if (bytes_ + enough <= budget_) break;
        bytes_ -= resident.served->lists[resident.list].bytes;
        ++resident.served->use.evictions;
        resident.served->lists_lost = lists_lost_ = true;
        resident.served->drop(resident.list);
    }
    return bytes_ + wanted <= budget_;
}

void Mirror::shrink_budget() {
    // Relative to the bytes resident, not to the budget: sizes of lists are estimates, and other
    // users of the device may hold memory for a while.
    if (bytes_ == 0) return;
    budget_ = bytes_ - bytes_ / 8;
    make_room(0);
}

bool Mirror::put(const MirrorKey& key, uint32_t list, const MirrorVersion& version,
                 std::span<const ListPage> pages, Victims victims, uint64_t changes) {
    Served* served = find(key);
    if (!served || list >= served->shape.lists) return true;
    const size_t wanted = bytes_of(pages, served->shape, served->attributes);
    if ((*served->versions)[list].resident) {
        bytes_ -= served->lists[list].bytes;
        served->drop(list);
    }
    ++clock_;
    // Before the store changes: versions may have to be copied, and memory for that may be missing.
    MirrorVersion& put = served->versions_to_change()[list];
    Served::List& here = served->lists[list];
    here.refused = wanted;
    // `wanted` is an estimate: the device may have less memory than the budget says.
    for (size_t room = wanted;; room = std::max(2 * room, budget_ / 16)) {
        const bool has_room =
            victims == Victims::none
                ? bytes_ + room <= budget_
                : make_room(std::min(room, budget_), victims == Victims::any ? nullptr : served);
        if (!has_room || wanted > budget_) return false;
        try {
            served->store->put(list, pages);
            break;
        } catch (const OutOfDeviceMemory&) {
            if (room >= budget_ || victims == Victims::none) return false;
        }
    }
    here.refused = 0;
    served->use.reloads += here.had_before;
    here.had_before = true;
    here.bytes = wanted;
    served->list_used[list] = ++uses_;
    here.last_wanted = 0;
    put = version;
    put.resident = 1;
    served->set_changes(list, changes);
    served->use.bytes += wanted;
    served->use.received += wanted;
    served->note_resident(list);
    bytes_ += wanted;
    return true;
}

bool Mirror::append(const MirrorKey& key, uint32_t list, const MirrorVersion& from,
                    const MirrorVersion& to, std::span<const ListPage> pages, uint64_t changes) {
    Served* served = find(key);
    if (!served || list >= served->shape.lists) return true;
    MirrorVersion expected = from;
    expected.resident = 1;
    if (!((*served->versions)[list] == expected)) return true;
    if (pages.empty() && from == to) {
        served->set_changes(list, changes);
        return true;
    }
    ++clock_;
    Served::List& here = served->lists[list];
    served->list_used[list] = ++uses_;
    const size_t wanted = bytes_of(pages, served->shape, served->attributes);
    if (here.bytes + wanted > budget_) return false;
    MirrorVersion* version = nullptr;
    for (size_t room = wanted;; room = std::max(2 * room, budget_ / 16)) {
        if (!make_room(std::min(room, budget_))) return false;
        // make_room() may have evicted this list.
        version = &served->versions_to_change()[list];
        if (!version->resident) return false;
        try {
            served->store->append(list, pages);
            break;
        } catch (const OutOfDeviceMemory&) {
            if (room >= budget_) return false;
        }
    }
    *version = to;
    version->resident = 1;
    served->set_changes(list, changes);
    ++served->use.appends;
    here.bytes += wanted;
    served->use.bytes += wanted;
    served->use.received += wanted;
    bytes_ += wanted;
    return true;
}

void Mirror::drop(const MirrorKey& key, uint32_t list) {
    Served* served = find(key);
    if (!served || list >= served->shape.lists || !(*served->versions)[list].resident) return;
    const size_t bytes = served->lists[list].bytes;
    served->drop(list);
    bytes_ -= bytes;
}

bool Mirror::wants(Served& served, uint32_t list) {
    Served::List& here = served.lists[list];
    if (here.last_wanted != 0 && clock_ - here.last_wanted < ask_again_after) return false;
    if (nearly_full() && clock_ % exchange_interval != 0) return false;
    here.last_wanted = clock_;
    return true;
}

size_t Mirror::name_missing(const MirrorKey& key, const ListRange& range,
                            std::span<uint32_t> missing) {
    Served* served = find(key);
    size_t count = 0;
    if (!served || nearly_full()) return count;
    if (!(range == served->range)) served->set_range(range);
    const uint32_t lists = served->shape.lists;
    for (uint32_t looked = 0; looked < lists && count < missing.size(); ++looked) {
        const uint32_t list = served->next_missing;
        served->next_missing = (list + 1) % lists;
        if (!(*served->versions)[list].resident && range.includes(list) &&
            bytes_ + served->lists[list].refused <= budget_)
            missing[count++] = list;
    }
    return count;
}

}  // namespace pgwarp
