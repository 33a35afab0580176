#include <algorithm>
#include <cmath>
#include <utility>

#include "kernels/mirror.h"
#include "extension/service/fill.h"
#include "extension/service/rate_limit.h"
#include "extension/service/placement.h"
#include "extension/service/shard_search.h"

namespace pgwarp {

namespace {

// A part of the index: the devices that own it, of which one after the other is asked, and the
// answer.
struct AskedPart {
    uint32 number;
    Route owners;
    WantedSearch search;
    int now;         // the device that is asked
    bool asks;       // it is asked in the next turn
    bool got_model;  // this search has sent the model
    bool answered;
    ServiceAnswer answer;

    ServiceDevice* device() const { return owners.devices[now]; }
    bool has_another() const { return now + 1 < owners.count; }
};

struct Parts {
    AskedPart items[most_devices];
    int count;
    bool sent_model;
};

// Which other devices the search waits for, besides the one that is asked for this part.
OtherDevices others_of(const Parts& parts, const AskedPart& part) {
    if (parts.count == 1) return part.has_another() ? OtherDevices::next : OtherDevices::none;
    return part.has_another() ? OtherDevices::both : OtherDevices::together;
}

void begin_again(AskedPart* part) {
    free_answer(&part->answer);
    begin_answer(&part->answer, part->search.k);
    part->answered = false;
}

// Asks the next owner of a part. False: there is none.
bool ask_another(AskedPart* part) {
    if (!part->has_another()) return false;
    ++part->now;
    part->got_model = false;
    begin_again(part);
    return true;
}

// Asks for the parts of this turn, and sends the model to devices that lack it. True: there is
// another turn, because such a device has the model now, or a part without an answer has another
// owner.
bool ask_parts(Relation index, const MetaPage& meta, const MirrorKey& key, const Deadline& deadline,
               Parts* parts) {
    AskedSearch searches[most_devices];
    AskedPart* asked[most_devices];
    int count = 0;
    for (int i = 0; i < parts->count; ++i) {
        AskedPart* part = &parts->items[i];
        if (!part->asks) continue;
        searches[count] = {key, part->search, deadline, true, nullptr};
        set_device(&searches[count].deadline, part->device(), others_of(*parts, *part));
        asked[count++] = part;
    }
    ask_together(searches, count);
    bool lacks_model[most_devices] = {}, asked_for[most_devices] = {};
    // No error before all slots are released.
    for (int i = 0; i < count; ++i) {
        AskedPart* part = asked[i];
        SearchSlot* slot = searches[i].slot;
        part->asks = false;
        if (!slot) continue;
        const MirrorSearch::Outcome outcome = slot->outcome;
        if (outcome == MirrorSearch::Outcome::found)
            part->answered = copy_answer(slot, part->search.k, meta.lists, &part->answer) &&
                             (part->answer.complete || part->answer.probed);
        lacks_model[i] = outcome == MirrorSearch::Outcome::unknown && !part->got_model &&
                         (slot->bring_model || insists_on_service());
        asked_for[i] = slot->bring_model;
        release_slot(slot);
    }
    bool again = false;
    for (int i = 0; i < count; ++i) {
        AskedPart* part = asked[i];
        if (part->answered) continue;
        // Reading a model takes a while. A search that does not wait for the devices sends it to
        // one of them, and the next search to another.
        if (lacks_model[i] &&
            (insists_on_service() || (!parts->sent_model && !is_over(deadline)))) {
            part->got_model = parts->sent_model = true;
            part->asks = bring_model(part->device(), index, meta, asked_for[i],
                                     insists_on_service(), &searches[i].deadline);
        }
        part->asks = part->asks || ask_another(part);
        again |= part->asks;
    }
    return again;
}

// Asks until each part has an answer, or no device is left to ask. Each device is asked at most
// twice: the second time after it got the model.
void ask_all(Relation index, const MetaPage& meta, const MirrorKey& key, Parts* parts,
             Deadline* deadline) {
    for (bool again = parts->count > 0; again && !is_over(*deadline);) {
        again = ask_parts(index, meta, key, *deadline, parts);
        // Sending models to several devices may have used up the time, though each gave signs of
        // life.
        if (again && insists_on_service()) *deadline = search_deadline();
    }
}

// Whether the complete answers have to name their lists, too: the answer of another part may have
// some of these lists, in another version; or a part has no answer, so its lists must be told
// apart.
bool need_versions(const Parts& parts, const Shards& shards) {
    uint32 complete = 0;  // parts, a bit each
    bool unanswered = false, named = false;
    for (int i = 0; i < parts.count; ++i) {
        const AskedPart& part = parts.items[i];
        unanswered |= !part.answered;
        named |= part.answered && !part.answer.complete;
        if (part.answered && part.answer.complete) complete |= uint32{1} << part.number;
    }
    if (complete == 0) return false;
    if (unanswered && !named) return true;
    for (int i = 0; named && i < parts.count; ++i) {
        const AskedPart& part = parts.items[i];
        if (!part.answered || part.answer.complete) continue;
        const MirrorProbe* end = part.answer.probed + part.answer.probed_count;
        if (std::any_of(const_cast<const MirrorProbe*>(part.answer.probed), end,
                        [&](const MirrorProbe& probe) {
                            return probe.version.resident != 0 &&
                                   (complete >> shards.part(probe.list) & 1) != 0;
                        }))
            return true;
    }
    return false;
}

void ask_for_versions(Relation index, const MetaPage& meta, const MirrorKey& key, Parts* parts,
                      Deadline* deadline) {
    for (int i = 0; i < parts->count; ++i) {
        AskedPart* part = &parts->items[i];
        if (!part->answered || !part->answer.complete) continue;
        part->search.wants_versions = true;
        begin_again(part);
        part->asks = true;
    }
    ask_all(index, meta, key, parts, deadline);
}

// The answers that came and name their lists, the one with the most lists first: searches that
// decide by themselves how many lists they take end at different ranks.
struct Given {
    const ServiceAnswer* answers[most_devices];
    int devices[most_devices];
    int count;
    uint32 complete;           // parts whose answer is complete and names none, a bit each
    int owners[most_devices];  // of each part of the index: the device that was asked for it
};

constexpr uint32 not_named = PG_UINT32_MAX;

// Where each answer has the lists of the first one: (answers)(lists). Null: one of them has a list
// that the first one lacks. Devices may round distances of lists otherwise.
uint32* match_lists(const Given& given, uint32 all_lists) {
    const ServiceAnswer& first = *given.answers[0];
    const uint32 lists = first.probed_count;
    auto* ranks = static_cast<uint32*>(
        palloc(Max(lists, 1u) * static_cast<uint32>(given.count) * sizeof(uint32)));
    for (int i = 0; i < given.count; ++i) {
        const ServiceAnswer& other = *given.answers[i];
        uint32* own = ranks + Size{static_cast<uint32>(i)} * lists;
        bool same = true;
        for (uint32 j = 0; j < lists; ++j) {
            own[j] = j < other.probed_count ? j : not_named;
            same &= own[j] == not_named || other.probed[j].list == first.probed[j].list;
        }
        if (same) continue;
        auto* rank_of = static_cast<uint32*>(palloc(all_lists * sizeof(uint32)));
        std::fill_n(rank_of, all_lists, not_named);
        for (uint32 j = 0; j < other.probed_count; ++j) rank_of[other.probed[j].list] = j;
        uint32 matched = 0;
        for (uint32 j = 0; j < lists; ++j) {
            own[j] = rank_of[first.probed[j].list];
            matched += own[j] != not_named;
        }
        pfree(rank_of);
        if (matched < other.probed_count) return nullptr;
    }
    return ranks;
}

// What to tell devices of the lists of an answer.
struct Notices {
    ListToSend* lists[most_devices];
    uint32 counts[most_devices];
    uint32 room;
};

void add_notice(int device, const ListToSend& what, Notices* notices) {
    if (!notices->lists[device])
        notices->lists[device] =
            static_cast<ListToSend*>(palloc(2 * notices->room * sizeof(ListToSend)));
    notices->lists[device][notices->counts[device]++] = what;
}

void send_notices(Relation index, const MetaPage& meta, Notices* notices) {
    for (int i = 0; i < service->devices; ++i) {
        if (notices->counts[i] == 0) continue;
        send_lists(service_device(i), index, meta, notices->lists[i], notices->counts[i], nullptr);
        pfree(notices->lists[i]);
    }
}

struct Merged {
    bool repeated;  // two devices have a list
    bool differ;    // and in different versions
};

// Says for each list which device covers it, by the one version that the merged answer has of it.
Merged merge_lists(const MirrorKey& key, const Given& given, const Shards& shards,
                   const uint32* ranks, ServiceAnswer* answer, Notices* notices) {
    const MirrorProbe* lists = given.answers[0]->probed;
    const uint32 count = given.answers[0]->probed_count;
    Merged merged = {};
    for (uint32 j = 0; j < count; ++j) {
        const uint32 list = lists[j].list;
        const uint32 part = shards.part(list);
        if ((given.complete >> part & 1) != 0) continue;
        const int owner = given.owners[part];
        MirrorProbe result = {};
        result.list = list;
        int covered_by = -1;
        bool owner_wants = false, owner_has = false, owner_ended = false;
        // Null: its search ended before this list.
        const auto probe_of = [&](int i) {
            const uint32 at = ranks[Size{static_cast<uint32>(i)} * count + j];
            return at == not_named ? nullptr : &given.answers[i]->probed[at];
        };
        for (int i = 0; i < given.count; ++i) {
            const MirrorProbe* probe = probe_of(i);
            const bool owns = given.devices[i] == owner;
            if (!probe || !probe->version.resident) {
                owner_ended |= owns && !probe;
                owner_wants |= owns && probe && probe->wanted;
                continue;
            }
            owner_has |= owns;
            if (covered_by >= 0) {
                merged.repeated = true;
                merged.differ |= !(probe->version == result.version);
                if (!owns) continue;
            }
            covered_by = given.devices[i];
            result.version = probe->version;
        }
        // Not part of the answer.
        if (covered_by < 0 && owner_ended) continue;
        result.wanted = covered_by < 0 && owner_wants;
        answer->devices[answer->probed_count] =
            static_cast<uint8>(covered_by >= 0 ? covered_by : owner);
        answer->probed[answer->probed_count++] = result;
        // The list is on another device: its owner has to get it first.
        if (covered_by >= 0 && owner_wants) add_notice(owner, {list, {}}, notices);
        for (int i = 0; owner_has && i < given.count; ++i) {
            const MirrorProbe* probe = probe_of(i);
            if (given.devices[i] == owner || !probe || !probe->version.resident ||
                !may_send(service_device(given.devices[i]), key, list, repeated_list))
                continue;
            ListToSend leave{list, {}};
            leave.drop = true;
            add_notice(given.devices[i], leave, notices);
        }
    }
    return merged;
}

// Adds the candidates of a part. `repeated`: parts have lists in common.
void add_part(uint32 k, bool repeated, ServiceAnswer* part, ServiceAnswer* answer) {
    SearchedLists& all = answer->searched;
    const SearchedLists& here = part->searched;
    // Entries of lists on two devices are counted twice.
    const uint32 passed = repeated ? Max(all.passed, here.passed) : all.passed + here.passed;
    answer->would_take_more |= part->would_take_more;
    if (part->refined)
        add_refined(*part, repeated, answer);
    else
        add_candidates(k, *part, repeated, answer);
    all.passed = passed;
    answer->refined = part->refined;
}

// The first part, without copying its candidates.
void take_part(ServiceAnswer* part, ServiceAnswer* answer) {
    std::swap(answer->found, part->found);
    answer->found_count = part->found_count;
    answer->searched = part->searched;
    answer->left_out = part->left_out;
    answer->would_take_more = part->would_take_more;
    answer->refined = part->refined;
}

void merge_candidates(uint32 k, bool repeated, Parts* parts, ServiceAnswer* answer) {
    bool first = true;
    for (int i = 0; i < parts->count; ++i) {
        AskedPart* part = &parts->items[i];
        if (!part->answered) continue;
        if (first)
            take_part(&part->answer, answer);
        else
            add_part(k, repeated, &part->answer, answer);
        first = false;
    }
}

Given named_answers(const Shards& shards, const Parts& parts) {
    Given given = {};
    for (uint32 i = 0; i < shards.parts; ++i) {
        const uint32 owners = shards.owners(i);
        // If no owner serves, any device may have the lists.
        given.owners[i] = owners == 0 ? 0 : __builtin_ctz(owners);
    }
    for (int i = 0; i < parts.count; ++i) {
        const AskedPart& part = parts.items[i];
        given.owners[part.number] = device_number(part.device());
        if (!part.answered) continue;
        if (part.answer.complete) {
            given.complete |= uint32{1} << part.number;
            continue;
        }
        given.devices[given.count] = device_number(part.device());
        given.answers[given.count++] = &part.answer;
        const int last = given.count - 1;
        if (given.answers[last]->probed_count <= given.answers[0]->probed_count) continue;
        std::swap(given.answers[0], given.answers[last]);
        std::swap(given.devices[0], given.devices[last]);
    }
    return given;
}

// Merges the lists of the answers that name them. False: that is impossible.
bool merge_named(Relation index, const MetaPage& meta, const MirrorKey& key, const Shards& shards,
                 const Given& given, ServiceAnswer* answer, bool* repeated) {
    const uint32* ranks = match_lists(given, meta.lists);
    if (!ranks) {
        answer->why = "devices have chosen other lists";
        return false;
    }
    const Size lists = Max(given.answers[0]->probed_count, 1u);
    answer->probed = static_cast<MirrorProbe*>(palloc(lists * sizeof(MirrorProbe)));
    answer->devices = static_cast<uint8*>(palloc(lists));
    Notices notices = {};
    notices.room = static_cast<uint32>(lists);
    const Merged merged = merge_lists(key, given, shards, ranks, answer, &notices);
    send_notices(index, meta, &notices);
    pfree(const_cast<uint32*>(ranks));
    *repeated = merged.repeated;
    if (merged.differ) answer->why = "two devices have different versions of a list";
    return !merged.differ;
}

bool merge_parts(Relation index, const MetaPage& meta, const MirrorKey& key, const Shards& shards,
                 Parts* parts, uint32 k, ServiceAnswer* answer) {
    uint32 taken = 0;
    for (int i = 0; i < parts->count; ++i) {
        const AskedPart& part = parts->items[i];
        if (!part.answered) continue;
        answer->asked |= uint32{1} << device_number(part.device());
        taken = Max(taken, part.answer.taken);
        send_outdated(part.device(), index, meta, key, part.answer.outdated);
    }
    const Given given = named_answers(shards, *parts);
    if (answer->asked == 0) return false;
    bool repeated = false;
    answer->complete = given.count == 0;
    // All lists up to this rank, and perhaps some more.
    answer->taken = taken;
    answer->some_complete = given.complete != 0;
    if (!answer->complete) {
        if (!merge_named(index, meta, key, shards, given, answer, &repeated)) return false;
        if (!answer->some_complete) answer->taken = answer->probed_count;
    }
    merge_candidates(k, repeated, parts, answer);
    return true;
}

// Adapts the search to a device that has this share of all entries, and decides by these how many
// lists it takes. If chance has put more of a query's near entries there than its share, the device
// would end too early: so it takes a few more lists than a device with all lists would.
void share_effort(double share, WantedSearch* search) {
    if (!(search->plan.threshold > 0) || share >= 1) return;
    // The device hardly ever has more of the k nearest rows than this; of few rows it may have all.
    constexpr uint32 few_rows = 100;
    const auto rows = search->plan.k;
    const double expected = share * rows;
    const double most = std::ceil(expected + 2 * std::sqrt(expected * (1 - share)));
    search->plan.k = Max(Min(static_cast<uint32>(most), rows), Min(rows, few_rows));
    // Scores grow with the entries seen.
    constexpr double margin = 1.5;
    const auto less = static_cast<float>(Min(margin * share, 1.0));
    search->plan.threshold *= less;
    search->plan.outside.threshold *= less;
}

// What the device of a part has of the index: what it should have, or more where lists are still to
// move. Lists that it lacks count as empty there: a lower share would end its search too early.
double share_of(const Shards& shards, const AskedPart& part) {
    const double share = shards.shares[part.number];
    if (shards.bytes == 0) return Min(share, 1.0);
    return Min(
        Max(share, static_cast<double>(part.owners.bytes) / static_cast<double>(shards.bytes)),
        1.0);
}

}  // namespace

bool ask_shards(Relation index, const MetaPage& meta, const MirrorKey& key, const Shards& shards,
                const WantedSearch& wanted, ServiceAnswer* answer) {
    Parts parts;
    parts.count = 0;
    parts.sent_model = false;
    uint32 lacking = 0, foreign = 0;
    for (uint32 i = 0; i < shards.parts; ++i) {
        AskedPart* part = &parts.items[parts.count];
        *part = {};
        part->owners = route_owners(key, shards.owners(i), shards.lists[i], wanted.devices);
        if (part->owners.count == 0) continue;
        part->number = i;
        part->asks = true;
        ++parts.count;
        lacking |= part->owners.lacking;
        foreign |= part->owners.foreign;
    }
    const bool all = static_cast<uint32>(parts.count) == shards.parts;
    for (int i = 0; i < parts.count; ++i) {
        AskedPart* part = &parts.items[i];
        part->search = wanted;
        part->search.range = shards.range(part->number);
        // A search that may be continued needs the device of each list.
        part->search.wants_versions |= wanted.filtered || !all || !may_be_complete();
        share_effort(share_of(shards, *part), &part->search);
        begin_answer(&part->answer, wanted.k);
    }
    ask_all(index, meta, key, &parts, &answer->deadline);
    if (need_versions(parts, shards)) ask_for_versions(index, meta, key, &parts, &answer->deadline);
    answer->device = nullptr;
    const bool merged = merge_parts(index, meta, key, shards, &parts, wanted.k, answer);
    for (int i = 0; i < parts.count; ++i) free_answer(&parts.items[i].answer);
    fill_copies(index, meta, key, lacking, &shards, !parts.sent_model);
    if (all && lacking == 0 && foreign != 0) drop_foreign(index, meta, key, foreign, shards);
    return merged;
}

}  // namespace pgwarp
