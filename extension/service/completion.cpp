#include <algorithm>
#include <cmath>
#include <cstring>

#include "kernels/mirror.h"
#include "extension/index/buffers.h"
#include "extension/index/change_counts.h"
#include "extension/index/lists.h"
#include "extension/index/page.h"
#include "extension/index/place.h"
#include "extension/service/client.h"
#include "extension/service/completion.h"
#include "extension/service/fill.h"
#include "extension/service/rate_limit.h"
#include "extension/service/placement.h"
#include "extension/service/seen_lists.h"
#include "extension/service/shard_search.h"
#include "extension/settings.h"

extern "C" {
#include "access/xlog.h"
#include "miscadmin.h"
#include "utils/timestamp.h"
}

namespace pgwarp {

namespace {

// A query that had to read this many appended entries sends them: each entry costs this query and
// the following ones a visit to the table. Fewer entries wait, because sending costs the worker
// more than reading a few.
constexpr uint32 enough_appended = 8;

// Entries appended to lists that pass the conditions, as long as they are few.
struct Collection {
    uint64* tids;
    uint32 count;  // of all that pass; `tids` has the first most_appended of them
    std::span<const Condition> conditions;
};

void collect(void* state, uint32, Page page, const EntryLayout& layout, uint32 first) {
    auto* collection = static_cast<Collection*>(state);
    const ItemPointerData* tids = page_tids(page, layout);
    for (uint32 i = first; i < page_tail(page)->count; ++i) {
        if (!passes(attribute_columns(page, layout), collection->conditions, i)) continue;
        if (collection->count < most_appended)
            collection->tids[collection->count] = tid_number(tids[i]);
        ++collection->count;
    }
}

// Result of walking a resident list from the mirror's tail on.
struct Appended {
    bool recycled;   // the mirror's tail has left the list, or has fewer entries now
    uint32 entries;  // appended since the mirror's version
};

Appended walk_appended(Relation index, const MetaPage& meta, const MirrorProbe& probe,
                       const ListPlace& place, const CompletionVisitor& visitor) {
    const EntryLayout layout = layout_of(meta, probe.list);
    Appended appended = {};
    // A list that was empty when it was sent has no tail to continue from.
    const bool was_empty = probe.version.tail == InvalidBlockNumber;
    uint32 first = was_empty ? 0 : probe.version.items;
    BlockNumber steps = 0;
    for (BlockNumber block = was_empty ? place.head : probe.version.tail;
         BlockNumberIsValid(block);) {
        count_step(index, block, place, &steps);
        Buffer buffer;
        if (!read_list_page(index, block, probe.list, layout, BUFFER_LOCK_SHARE, &buffer)) {
            appended.recycled = true;
            break;
        }
        Page page = BufferGetPage(buffer);
        const uint32 count = page_tail(page)->count;
        if (count > first) {
            appended.entries += count - first;
            visitor.visit(visitor.state, probe.list, page, layout, first);
        }
        appended.recycled = count < first;
        first = 0;
        block = page_tail(page)->next;
        UnlockReleaseBuffer(buffer);
        if (appended.recycled) break;
    }
    return appended;
}

// Lists of an answer whose pages must be read.
struct ToCheck {
    MirrorProbe* probes;
    ServiceDevice** devices;  // that have these lists, or should
    uint64* changes;          // of each list, before its pages are read
    uint32 count;
};

// The lists of the answer without those that this backend has seen at the mirror's version, and
// that have not changed since.
ToCheck changed_since(Relation index, const SeenList* seen, const ServiceAnswer& answer) {
    const Size most = Max(answer.probed_count, 1u);
    ToCheck result = {static_cast<MirrorProbe*>(palloc(most * sizeof(MirrorProbe))),
                      static_cast<ServiceDevice**>(palloc(most * sizeof(ServiceDevice*))),
                      static_cast<uint64*>(palloc0(most * sizeof(uint64))), 0};
    const ListChanges changes(index);
    for (uint32 i = 0; i < answer.probed_count; ++i) {
        const MirrorProbe& probe = answer.probed[i];
        const uint64 now = seen ? changes.of(probe.list) : 0;
        if (seen && seen[probe.list].changes == now && probe.version.resident &&
            seen[probe.list].version == probe.version)
            continue;
        result.devices[result.count] = device_of(answer, i);
        result.changes[result.count] = now;
        result.probes[result.count++] = probe;
    }
    // Counts first, then pages.
    pg_read_barrier();
    return result;
}

// Lists to send, and where.
struct Sends {
    ListToSend* lists;
    ServiceDevice** devices;
    uint32 count;
    // Devices that may get few appended entries, and those that were asked about it, a bit each.
    uint32 few_to;
    uint32 few_known;
};

Sends begin_sends(uint32 most) {
    return {static_cast<ListToSend*>(palloc(Max(most, 1u) * sizeof(ListToSend))),
            static_cast<ServiceDevice**>(palloc(Max(most, 1u) * sizeof(ServiceDevice*))), 0, 0, 0};
}

void add_send(Sends* sends, ServiceDevice* device, const ListToSend& what) {
    sends->devices[sends->count] = device;
    sends->lists[sends->count++] = what;
}

bool few_may_go(const ServiceDevice* device, const MirrorKey& key, Sends* sends) {
    const uint32 bit = uint32{1} << device_number(device);
    if ((sends->few_known & bit) == 0) {
        sends->few_known |= bit;
        if (may_send(device, key, any_list, few_entries)) sends->few_to |= bit;
    }
    return (sends->few_to & bit) != 0;
}

void send_all(Relation index, const MetaPage& meta, const Sends& sends,
              const ServiceAnswer& answer) {
    Deadline deadline = answer.deadline;
    auto* lists = static_cast<ListToSend*>(palloc(Max(sends.count, 1u) * sizeof(ListToSend)));
    for (int number = 0; sends.count > 0 && number < service->devices; ++number) {
        ServiceDevice* device = service_device(number);
        uint32 count = 0;
        for (uint32 i = 0; i < sends.count; ++i)
            if (sends.devices[i] == device) lists[count++] = sends.lists[i];
        // The owner of a list may be away.
        if (count == 0 || (device != answer.device && !is_available(device))) continue;
        if (insists_on_service()) set_device(&deadline, device, OtherDevices::none);
        send_lists(device, index, meta, lists, count, insists_on_service() ? &deadline : nullptr);
    }
    pfree(lists);
}

struct WholeVisit {
    const CompletionVisitor* visitor;
};

void visit_whole(void* state, uint32 list, Page page, const EntryLayout& layout) {
    const CompletionVisitor* visitor = static_cast<WholeVisit*>(state)->visitor;
    visitor->visit(visitor->state, list, page, layout, 0);
}

}  // namespace

// Asks the device of the answer's deadline. False: it has no answer.
static bool ask_device(Relation index, const MetaPage& meta, const MirrorKey& key,
                       const WantedSearch& search, ServiceAnswer* answer) {
    ServiceDevice* device = answer->deadline.device;
    for (bool sent = false;; sent = true) {
        SearchSlot* slot = ask_service(key, search, &answer->deadline);
        if (!slot) return false;
        if (slot->outcome == MirrorSearch::Outcome::found) {
            const bool copied = copy_answer(slot, search.k, meta.lists, answer);
            release_slot(slot);
            answer->device = device;
            return copied;
        }
        const MirrorSearch::Outcome outcome = slot->outcome;
        const bool asked = slot->bring_model;
        release_slot(slot);
        if (outcome == MirrorSearch::Outcome::refused) answer->why = refused_reason;
        if (outcome != MirrorSearch::Outcome::unknown || sent) return false;
        answer->sent_model = asked || insists_on_service();
        if (!bring_model(device, index, meta, asked, insists_on_service(), &answer->deadline))
            return false;
    }
}

bool ask_for_candidates(Relation index, const MetaPage& meta, const WantedSearch& wanted,
                        ServiceAnswer* answer) {
    const MirrorKey key = mirror_key(index, meta);
    // Allocate before the answer exists: after an error in palloc() the slot would keep its block.
    begin_answer(answer, wanted.k);
    answer->deadline = search_deadline();
    Shards shards;
    if (find_shards(index, meta, key, &shards))
        return ask_shards(index, meta, key, shards, wanted, answer);
    WantedSearch search = wanted;
    search.wants_versions |= !may_be_complete();
    const Route route = route_search(key, placement_of(index), wanted.device);
    bool answered = false;
    for (int i = 0; !answered && i < route.count && !is_over(answer->deadline); ++i) {
        set_device(&answer->deadline, route.devices[i],
                   i + 1 < route.count ? OtherDevices::next : OtherDevices::none);
        answered = ask_device(index, meta, key, search, answer);
    }
    fill_copies(index, meta, key, route.lacking, nullptr, !answer->sent_model);
    return answered;
}

namespace {

// The searches of ask_ahead(), and where they stand.
struct Ahead {
    SearchAhead* searches;
    const SearchPlanner* planner;
    bool* asked;
    bool* want_model;
    uint32* lacking;  // devices, a bit each
};

bool plan_ahead(void* state, int number, AskedSearch* asked) {
    const auto* ahead = static_cast<Ahead*>(state);
    SearchAhead* search = &ahead->searches[number];
    search->answered = false;
    if (!ahead->planner->plan(ahead->planner->state, number, search)) return false;
    const MirrorKey key = mirror_key(search->index, *search->meta);
    Shards shards;
    if (find_shards(search->index, *search->meta, key, &shards)) return false;
    const Route route = route_search(key, placement_of(search->index), search->wanted.device);
    if (route.count == 0) return false;
    // After an error in palloc() a slot would keep its block.
    const MemoryContext before = MemoryContextSwitchTo(search->context);
    begin_answer(&search->answer, search->wanted.k);
    MemoryContextSwitchTo(before);
    asked->key = key;
    asked->wanted = search->wanted;
    asked->wanted.wants_versions |= !may_be_complete();
    asked->deadline = search_deadline();
    set_device(&asked->deadline, route.devices[0],
               route.count > 1 ? OtherDevices::next : OtherDevices::none);
    ahead->asked[number] = true;
    ahead->lacking[number] = route.lacking;
    return true;
}

// Slots have blocks: no error may be reported.
void take_ahead(void* state, int number, const SearchSlot* slot) {
    auto* ahead = static_cast<Ahead*>(state);
    SearchAhead* search = &ahead->searches[number];
    if (slot->outcome != MirrorSearch::Outcome::found) {
        ahead->want_model[number] =
            slot->outcome == MirrorSearch::Outcome::unknown && slot->bring_model;
        return;
    }
    const MemoryContext before = MemoryContextSwitchTo(search->context);
    search->answered = copy_answer(slot, search->wanted.k, search->meta->lists, &search->answer);
    MemoryContextSwitchTo(before);
}

}  // namespace

void ask_ahead(SearchAhead* searches, int count, const SearchPlanner& planner) {
    const auto most = static_cast<Size>(Max(count, 1));
    auto* asked = static_cast<AskedSearch*>(palloc(most * sizeof(AskedSearch)));
    Ahead ahead = {searches, &planner, static_cast<bool*>(palloc0(most * sizeof(bool))),
                   static_cast<bool*>(palloc0(most * sizeof(bool))),
                   static_cast<uint32*>(palloc0(most * sizeof(uint32)))};
    ask_for_each(asked, count, {plan_ahead, take_ahead, &ahead});
    for (int i = 0; i < count; ++i) {
        if (!ahead.asked[i]) continue;
        SearchAhead* search = &searches[i];
        search->answer.device = asked[i].deadline.device;
        search->answer.deadline = asked[i].deadline;
        fill_copies(search->index, *search->meta, asked[i].key, ahead.lacking[i], nullptr,
                    !ahead.want_model[i]);
        if (search->answered) continue;
        free_answer(&search->answer);
        // The worker asks one session for the model, and no other for a while.
        if (ahead.want_model[i])
            bring_model(asked[i].deadline.device, search->index, *search->meta, true, false,
                        &asked[i].deadline);
    }
    pfree(ahead.lacking);
    pfree(ahead.want_model);
    pfree(ahead.asked);
    pfree(asked);
}

Completion complete_answer(Relation index, const MetaPage& meta, const ServiceAnswer& answer,
                           const CompletionVisitor& visitor) {
    if (answer.complete) {
        Completion nothing = {};
        nothing.current = true;
        nothing.appended = static_cast<uint64*>(palloc(sizeof(uint64)));
        return nothing;
    }
    const MirrorKey key = mirror_key(index, meta);
    SeenList* seen = seen_lists(key, meta.lists);
    const ToCheck to_check = changed_since(index, seen, answer);
    const MirrorProbe* probed = to_check.probes;
    const uint32 count = to_check.count;
    uint32* lists = static_cast<uint32*>(palloc(Max(count, 1u) * sizeof(uint32)));
    ListPlace* before = static_cast<ListPlace*>(palloc(Max(count, 1u) * sizeof(ListPlace)));
    ListPlace* after = static_cast<ListPlace*>(palloc(Max(count, 1u) * sizeof(ListPlace)));
    uint32* absent = static_cast<uint32*>(palloc(Max(count, 1u) * sizeof(uint32)));
    bool* grown = static_cast<bool*>(palloc0(Max(count, 1u) * sizeof(bool)));
    // A list that has grown and then lost an entry is in to_send twice.
    Sends to_send = begin_sends(2 * count);
    uint32 absent_count = 0;
    Completion result = {};
    result.current = true;
    result.appended = static_cast<uint64*>(palloc(most_appended * sizeof(uint64)));
    Collection collection{result.appended, 0, visitor.conditions};
    const CompletionVisitor collector{nullptr, collect, &collection, visitor.conditions};

    for (uint32 i = 0; i < count; ++i) lists[i] = probed[i].list;
    read_places(index, meta, lists, count, before);
    for (uint32 i = 0; i < count && result.current; ++i) {
        const MirrorProbe& probe = probed[i];
        ServiceDevice* device = to_check.devices[i];
        if (!probe.version.resident) {
            absent[absent_count++] = probe.list;
            if (probe.wanted || insists_on_service()) add_send(&to_send, device, {probe.list, {}});
            continue;
        }
        // The check of `after` below would find this, too; here it saves reading pages.
        if (before[i].generation != probe.version.generation) {
            result.current = false;
            continue;
        }
        // The common case: the list has not changed.
        if (is_seen_as_tail(index, probe.version.tail, probe.list, probe.version.items)) continue;
        const Appended appended = walk_appended(index, meta, probe, before[i], collector);
        if (appended.recycled) result.current = false;
        grown[i] = appended.entries > 0;
        result.grown_lists += grown[i];
    }
    const bool enough = collection.count >= enough_appended;
    for (uint32 i = 0; result.grown_lists > 0 && i < count; ++i) {
        ServiceDevice* device = to_check.devices[i];
        if (grown[i] && (enough || few_may_go(device, key, &to_send)) &&
            may_send(device, key, probed[i].list, appended_entries))
            add_send(&to_send, device, {probed[i].list, probed[i].version});
    }

    const bool few = collection.count <= most_appended;
    result.appended_count = few ? collection.count : 0;
    if (result.current && (absent_count > 0 || !few)) {
        visitor.prepare(visitor.state);
        WholeVisit whole{&visitor};
        walk_lists(index, meta, absent, absent_count, {visit_whole, &whole});
        result.read_lists = absent_count;
        result.visited = !few;
        for (uint32 i = 0; i < count && !few; ++i)
            if (grown[i] && walk_appended(index, meta, probed[i], before[i], visitor).recycled)
                result.current = false;
    }

    // Read the places after the tails. A list that still has the mirror's generation has lost
    // nothing since it was sent, so the entries read from its tail above make it complete.
    read_places(index, meta, lists, count, after);
    for (uint32 i = 0; i < count; ++i) {
        const MirrorProbe& probe = probed[i];
        if (!probe.version.resident || after[i].generation == probe.version.generation) continue;
        result.current = false;
        ServiceDevice* device = to_check.devices[i];
        if (may_send(device, key, probe.list, whole_list))
            add_send(&to_send, device, {probe.list, {}});
    }
    if (!result.current) result.because = "a list changed";
    for (uint32 i = 0; i < count && seen && result.current; ++i)
        if (probed[i].version.resident && !grown[i])
            seen[probed[i].list] = {to_check.changes[i], probed[i].version};
    send_all(index, meta, to_send, answer);
    if (answer.device) send_outdated(answer.device, index, meta, key, answer.outdated);

    pfree(to_send.lists);
    pfree(to_send.devices);
    pfree(grown);
    pfree(absent);
    pfree(after);
    pfree(before);
    pfree(lists);
    pfree(to_check.changes);
    pfree(to_check.devices);
    pfree(to_check.probes);
    return result;
}

}  // namespace pgwarp
