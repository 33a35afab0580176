#include "kernels/mirror.h"

#include <algorithm>
#include <cstring>
#include <exception>
#include <utility>

namespace pgwarp {

struct Mirror::Served {
    MirrorKey key;
    QuantizerShape shape;
    std::unique_ptr<ListStore> store;
    // Whoever runs a search holds a copy of the pointer: change what it points to through
    // versions_to_change().
    std::shared_ptr<Versions> versions;  // (lists)
    struct List {
        size_t bytes = 0;
        uint64_t last_used = 0;    // by the clock
        uint64_t last_wanted = 0;  // when somebody was asked to bring it; 0: never
        bool had_before = false;   // resident once, so that putting it is a reload
    };
    std::vector<List> lists;
    // The answer that named a list last: a list named twice would give its rows twice.
    std::vector<uint64_t> named_by;  // (lists)
    uint64_t answers = 0;
    uint64_t last_used = 0;   // by the clock
    bool lists_lost = false;  // to others, since changes were last asked for
    MirrorUse use{};
    std::unique_ptr<ListBatch> batches[turns];  // after the store: they end first

    Versions& versions_to_change() {
        if (versions.use_count() > 1) versions = std::make_shared<Versions>(*versions);
        return *versions;
    }

    // Versions first: what is not said to be resident is read from elsewhere.
    void drop(uint32_t list) {
        versions_to_change()[list] = {};
        store->drop(list);
        use.bytes -= lists[list].bytes;
        lists[list].bytes = 0;
        --use.resident_lists;
    }

    // Its model, and what its lists would take were all resident, estimated by those that are.
    size_t assigned() const {
        const size_t floats =
            size_t{shape.lists} * shape.dims + size_t{shape.codebook_rows()} * codewords;
        return floats * sizeof(float) + use.bytes * shape.lists / std::max(use.resident_lists, 1u);
    }
};

namespace {

// So many turns of the clock after somebody was asked for a list, somebody else is.
constexpr uint64_t patience = 200;
// When all room is taken, a list comes in at another's cost. One in so many turns is enough to
// follow what is used, and little enough not to spend the time on loading.
constexpr uint64_t exchange_interval = 8;
// Where a search finds no room, an eighth of the lists go. What they may take comes back over turns
// without failure, an eighth of the budget in so many: few searches try in vain for more.
constexpr size_t budget_turns = 4096;

uint64_t name_of(uint32_t database, uint32_t index) {
    return uint64_t{database} << 32 | index;
}

// Sizes in steps, so that a batch made for one search serves the next.
uint32_t step_up(uint32_t wanted, uint32_t least) {
    uint32_t size = least;
    while (size < wanted) size *= 2;
    return size;
}

// A code, an offset, a TID.
size_t entry_bytes(const QuantizerShape& shape) {
    return shape.m + sizeof(float) + sizeof(uint64_t);
}

size_t bytes_of(std::span<const ListPage> pages, const QuantizerShape& shape) {
    size_t entries = 0;
    for (const ListPage& page : pages) entries += page.count;
    return entries * entry_bytes(shape);
}

}  // namespace

Mirror::Mirror(Device& device, size_t budget)
    : device_(device), full_budget_(budget), budget_(budget) {}

Mirror::~Mirror() {
    for (std::vector<Running>& turn : running_)
        for (Running& running : turn) try {
                running.served->store->wait(*running.batch);
            } catch (...) {
                // It ends, whatever it says.
            }
}

Mirror::Served* Mirror::find(const MirrorKey& key) const {
    const auto at = served_.find(name_of(key.database, key.index));
    return at != served_.end() && at->second->key == key ? at->second.get() : nullptr;
}

bool Mirror::knows(const MirrorKey& key) const {
    return find(key) != nullptr;
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

void Mirror::add(const MirrorKey& key, const Quantizer& model) {
    forget(key.database, key.index);
    auto served = std::make_shared<Served>();
    served->key = key;
    served->shape = model.shape;
    while (!served->store) try {
            served->store = device_.make_list_store(model);
        } catch (const OutOfDeviceMemory&) {
            if (!give_up_index()) throw;
        }
    served->last_used = ++clock_;
    served->versions = std::make_shared<Versions>(model.shape.lists);
    served->lists.resize(model.shape.lists);
    served->named_by.resize(model.shape.lists);
    served->use.lists = model.shape.lists;
    served_[name_of(key.database, key.index)] = std::move(served);
}

void Mirror::forget(uint32_t database, uint32_t index) {
    std::erase_if(served_, [&](const auto& item) {
        const MirrorKey& key = item.second->key;
        if (key.database != database || (index != 0 && key.index != index)) return false;
        bytes_ -= item.second->use.bytes;
        return true;
    });
}

bool Mirror::give_up_index() {
    const auto oldest = std::min_element(
        served_.begin(), served_.end(),
        [](const auto& a, const auto& b) { return a.second->last_used < b.second->last_used; });
    if (oldest == served_.end()) return false;
    MirrorUse last = oldest->second->use;
    last.evictions += last.resident_lists;
    last.lists = last.resident_lists = 0;
    last.bytes = 0;
    changes_.push_back({oldest->second->key, last});
    bytes_ -= oldest->second->use.bytes;
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
                residents.push_back({served->lists[list].last_used, served.get(), list});
    std::sort(residents.begin(), residents.end(),
              [](const Resident& a, const Resident& b) { return a.last_used < b.last_used; });
    // A little more than is needed now, so that not every list that comes sorts all others.
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
    // Of what there is, not of the budget: what lists take is an estimate, and others may have
    // taken the room, for a while.
    if (bytes_ == 0) return;
    budget_ = bytes_ - bytes_ / 8;
    make_room(0);
}

bool Mirror::put(const MirrorKey& key, uint32_t list, const MirrorVersion& version,
                 std::span<const ListPage> pages, Victims victims) {
    Served* served = find(key);
    if (!served || list >= served->shape.lists) return true;
    const size_t wanted = bytes_of(pages, served->shape);
    if ((*served->versions)[list].resident) {
        bytes_ -= served->lists[list].bytes;
        served->drop(list);
    }
    ++clock_;
    // Before anything is in the store: it may have to be copied, and there may be no memory.
    MirrorVersion& put = served->versions_to_change()[list];
    // What is wanted is an estimate: the device itself may have less than the budget says.
    for (size_t room = wanted;; room = std::max(2 * room, budget_ / 16)) {
        if (!make_room(std::min(room, budget_),
                       victims == Victims::other_indexes ? served : nullptr) ||
            wanted > budget_)
            return false;
        try {
            served->store->put(list, pages);
            break;
        } catch (const OutOfDeviceMemory&) {
            if (room >= budget_) return false;
        }
    }
    Served::List& here = served->lists[list];
    served->use.reloads += here.had_before;
    here.had_before = true;
    here.bytes = wanted;
    here.last_used = clock_;
    here.last_wanted = 0;
    put = version;
    put.resident = 1;
    served->use.bytes += wanted;
    served->use.received += wanted;
    ++served->use.resident_lists;
    bytes_ += wanted;
    return true;
}

bool Mirror::append(const MirrorKey& key, uint32_t list, const MirrorVersion& from,
                    const MirrorVersion& to, std::span<const ListPage> pages) {
    Served* served = find(key);
    if (!served || list >= served->shape.lists) return true;
    MirrorVersion expected = from;
    expected.resident = 1;
    if (!((*served->versions)[list] == expected)) return true;
    ++clock_;
    Served::List& here = served->lists[list];
    here.last_used = clock_;
    const size_t wanted = bytes_of(pages, served->shape);
    if (here.bytes + wanted > budget_) return false;
    MirrorVersion* version = nullptr;
    for (size_t room = wanted;; room = std::max(2 * room, budget_ / 16)) {
        if (!make_room(std::min(room, budget_))) return false;
        // Lists that gave way: this one may be among them.
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
    ++served->use.appends;
    here.bytes += wanted;
    served->use.bytes += wanted;
    served->use.received += wanted;
    bytes_ += wanted;
    return true;
}

bool Mirror::wants(Served& served, uint32_t list) {
    Served::List& here = served.lists[list];
    if (here.last_wanted != 0 && clock_ - here.last_wanted < patience) return false;
    // Nearly full: the next list that comes in drives others out.
    if (bytes_ + budget_ / 16 > budget_ && clock_ % exchange_interval != 0) return false;
    here.last_wanted = clock_;
    return true;
}

void Mirror::start_batch(int turn, const std::shared_ptr<Served>& served,
                         std::vector<MirrorSearch*> searches) {
    uint32_t k = 1;
    uint32_t probes = 1;
    for (const MirrorSearch* search : searches) {
        k = std::max(k, search->k);
        probes = std::max(probes, std::min(search->probes, served->shape.lists));
    }
    const ListBatchShape shape{step_up(static_cast<uint32_t>(searches.size()), 16), step_up(k, 16),
                               step_up(probes, 16)};
    std::unique_ptr<ListBatch>& batch = served->batches[turn];
    if (!batch || batch->shape.queries < searches.size() || batch->shape.k < k ||
        batch->shape.probes < probes) {
        const ListBatchShape before = batch ? batch->shape : ListBatchShape{};
        batch = nullptr;
        batch = served->store->make_batch({std::max(shape.queries, before.queries),
                                           std::min(std::max(shape.k, before.k), max_list_k),
                                           std::max(shape.probes, before.probes)});
    }
    const uint32_t dims = served->shape.dims;
    for (size_t i = 0; i < searches.size(); ++i) {
        std::memcpy(batch->queries + i * dims, searches[i]->query, dims * sizeof(float));
        batch->wanted[i] = {std::clamp(searches[i]->k, 1u, max_list_k),
                            std::clamp(searches[i]->probes, 1u, served->shape.lists)};
    }
    served->last_used = clock_ + 1;
    ++served->use.batches;
    served->use.batch_queries += searches.size();
    running_[turn].push_back({served, served->versions, batch.get(), std::move(searches)});
    try {
        served->store->start(*batch, running_[turn].back().searches.size());
    } catch (...) {
        running_[turn].pop_back();
        throw;
    }
}

void Mirror::finish_batch(Running& running) {
    Served& served = *running.served;
    ListBatch& batch = *running.batch;
    served.store->wait(batch);
    const uint64_t now = ++clock_;
    for (size_t i = 0; i < running.searches.size(); ++i) {
        MirrorSearch& search = *running.searches[i];
        const uint32_t* probed = batch.probed + i * batch.probed_stride;
        const uint32_t probes = batch.wanted[i].probes;
        ++served.answers;
        if (batch.found_counts[i] > batch.wanted[i].k ||
            std::any_of(probed, probed + probes, [&](uint32_t list) {
                if (list >= served.shape.lists || served.named_by[list] == served.answers)
                    return true;
                served.named_by[list] = served.answers;
                return false;
            })) {
            // Distances without an order may do that, of vectors near the end of what a float can
            // be. The other answers are none the worse.
            search.outcome = MirrorSearch::Outcome::failed;
            ++served.use.errors;
            continue;
        }
        search.found_count = batch.found_counts[i];
        std::memcpy(search.found, batch.found + i * batch.found_stride,
                    search.found_count * sizeof(Neighbor));
        search.probed_count = probes;
        for (uint32_t p = 0; p < search.probed_count; ++p) {
            const uint32_t list = probed[p];
            const MirrorVersion& version = (*running.versions)[list];
            const bool wanted = !version.resident && wants(served, list);
            search.probed[p] = {list, wanted, version};
            served.lists[list].last_used = now;
        }
        search.outcome = MirrorSearch::Outcome::found;
    }
}

void Mirror::start(int turn, std::span<MirrorSearch* const> searches) {
    std::vector<MirrorSearch*> order(searches.begin(), searches.end());
    for (MirrorSearch* search : order) {
        const Served* served = find(search->key);
        search->outcome = served && served->shape.dims == search->dims
                              ? MirrorSearch::Outcome::failed
                              : MirrorSearch::Outcome::unknown;
        search->found_count = search->probed_count = 0;
    }
    std::erase_if(order, [](const MirrorSearch* search) {
        return search->outcome == MirrorSearch::Outcome::unknown;
    });
    std::stable_sort(order.begin(), order.end(), [](const MirrorSearch* a, const MirrorSearch* b) {
        return name_of(a->key.database, a->key.index) < name_of(b->key.database, b->key.index);
    });
    std::exception_ptr failure;
    for (size_t begin = 0; begin < order.size();) {
        size_t end = begin + 1;
        while (end < order.size() && order[end]->key == order[begin]->key) ++end;
        const MirrorKey& key = order[begin]->key;
        const std::shared_ptr<Served> served = served_.at(name_of(key.database, key.index));
        try {
            start_batch(turn, served,
                        {order.begin() + static_cast<ptrdiff_t>(begin),
                         order.begin() + static_cast<ptrdiff_t>(end)});
        } catch (...) {
            note_failure(*served, &failure);
        }
        begin = end;
    }
    if (failure) std::rethrow_exception(failure);
}

// Inside a catch block. Searches of the batch stay marked as failed; the others go on, and what is
// worth telling is thrown when they are through.
void Mirror::note_failure(Served& served, std::exception_ptr* failure) {
    // So many batches in a row fail on no device that is going to recover.
    constexpr int enough = 16;
    ++served.use.errors;
    try {
        throw;
    } catch (const OutOfDeviceMemory&) {
        shrink_budget();
    } catch (const DeviceFailure& thrown) {
        const bool lost = thrown.lost || ++failures_in_a_row_ >= enough;
        if (lost || !*failure)
            *failure = std::make_exception_ptr(DeviceFailure(thrown.what(), lost));
    } catch (const std::bad_alloc&) {
        // The host's memory says nothing of the device.
        if (!*failure) *failure = std::current_exception();
    } catch (...) {
        if (!*failure) *failure = std::current_exception();
    }
}

void Mirror::finish(int turn) {
    // Whatever happens below, the turn is over.
    std::vector<Running> running = std::move(running_[turn]);
    running_[turn].clear();
    std::exception_ptr failure;
    for (Running& batch : running) try {
            finish_batch(batch);
            failures_in_a_row_ = 0;
        } catch (...) {
            note_failure(*batch.served, &failure);
        }
    if (failure) std::rethrow_exception(failure);
    if (!running.empty())
        budget_ = std::min(full_budget_, budget_ + full_budget_ / (8 * budget_turns) + 1);
}

}  // namespace pgwarp
