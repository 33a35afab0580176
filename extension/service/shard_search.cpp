#include <algorithm>
#include <cmath>
#include <utility>

#include "kernels/mirror.h"
#include "extension/service/pace.h"
#include "extension/service/placement.h"
#include "extension/service/shard_search.h"

namespace pgwarp {

namespace {

// A part of the index: the devices that own it, of which one after the other is asked, and the
// answer.
struct AskedPart {
    Route owners;
    int now;         // who is asked
    bool asks;       // it is asked in the next turn
    bool got_model;  // from this search
    bool answered;
    ServiceAnswer answer;

    ServiceDevice* device() const { return owners.devices[now]; }
    bool has_another() const { return now + 1 < owners.count; }
};

struct Parts {
    AskedPart items[most_devices];
    int count;
};

// Whom else the search waits for, besides the device that is asked for this part.
OtherDevices others_of(const Parts& parts, const AskedPart& part) {
    if (parts.count == 1) return part.has_another() ? OtherDevices::next : OtherDevices::none;
    return part.has_another() ? OtherDevices::both : OtherDevices::together;
}

// Asks the next owner of a part. False: there is none.
bool ask_another(uint32 k, AskedPart* part) {
    if (!part->has_another()) return false;
    ++part->now;
    part->got_model = false;
    free_answer(&part->answer);
    begin_answer(&part->answer, k);
    return true;
}

// Asks for the parts of this turn, and sends the model to devices that lack it. True: some of these
// have it now, or another device owns a part that has no answer: there is another turn.
bool ask_parts(Relation index, const MetaPage& meta, const MirrorKey& key,
               const WantedSearch& search, const Patience& patience, Parts* parts) {
    Patience patiences[most_devices];
    SearchSlot* slots[most_devices];
    AskedPart* asked[most_devices];
    int count = 0;
    for (int i = 0; i < parts->count; ++i) {
        AskedPart* part = &parts->items[i];
        if (!part->asks) continue;
        patiences[count] = patience;
        wait_for(&patiences[count], part->device(), others_of(*parts, *part));
        asked[count++] = part;
    }
    ask_together(key, search, patiences, count, slots);
    bool lacks_model[most_devices] = {};
    // No error before all slots are released.
    for (int i = 0; i < count; ++i) {
        asked[i]->asks = false;
        if (!slots[i]) continue;
        const MirrorSearch::Outcome outcome = slots[i]->outcome;
        if (outcome == MirrorSearch::Outcome::found)
            asked[i]->answered = copy_answer(slots[i], search.k, meta.lists, &asked[i]->answer) &&
                                 asked[i]->answer.probed;
        lacks_model[i] = outcome == MirrorSearch::Outcome::unknown && !asked[i]->got_model &&
                         (slots[i]->bring_model || insists_on_service());
        release_slot(slots[i]);
    }
    bool again = false;
    bool sent = false;
    for (int i = 0; i < count; ++i) {
        AskedPart* part = asked[i];
        if (part->answered) continue;
        // Reading a model takes a while. A search that does not wait for the devices sends it to
        // one of them, and the next search to another.
        if (lacks_model[i] && (insists_on_service() || (!sent && !is_over(patience)))) {
            part->got_model = true;
            sent = send_model(part->device(), index, meta, &patiences[i]);
            part->asks = sent && insists_on_service() && wait_for_loads(&patiences[i]);
        }
        part->asks = part->asks || ask_another(search.k, part);
        again |= part->asks;
    }
    return again;
}

// The answers that came, the one with the most lists first: searches that decide by themselves how
// many lists they take end at different ranks.
struct Given {
    const ServiceAnswer* answers[most_devices];
    int devices[most_devices];
    int count;
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
        const int owner = given.owners[shards.part(list)];
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
        // It lies elsewhere: first to its owner.
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

void merge_candidates(uint32 k, const Given& given, bool repeated, ServiceAnswer* answer) {
    for (int i = 0; i < given.count; ++i) {
        const ServiceAnswer& part = *given.answers[i];
        for (uint32 group = 0; group < near_groups; ++group)
            answer->searched.near[group] += part.searched.near[group];
        answer->counts_near &= part.counts_near;
        answer->would_take_more |= part.would_take_more;
        if (part.refined)
            add_refined(part, repeated, answer);
        else
            add_candidates(k, part, repeated, answer);
        answer->refined = part.refined;
    }
}

bool merge_parts(Relation index, const MetaPage& meta, const MirrorKey& key, const Shards& shards,
                 uint32 k, const Given& given, ServiceAnswer* answer) {
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
    if (merged.differ) {
        answer->why = "two devices have different versions of a list";
        return false;
    }
    answer->taken = answer->probed_count;
    answer->counts_near = true;
    merge_candidates(k, given, merged.repeated, answer);
    return true;
}

// What each of several devices decides by the entries that it has, one in `parts` of all.
void share_effort(uint32 parts, WantedSearch* search) {
    // It counts what is as near as its part of the nearest.
    search->near_k = (search->near_k + parts - 1) / parts;
    if (!(search->threshold > 0)) return;
    // Scores grow with the root of the entries seen. The radius is that of the same k among fewer
    // entries, which is larger: a device takes some lists more than one with all lists would.
    // Of many rows, a part has to do: it may have no more.
    constexpr uint32 few_rows = 100;
    const auto part_of = [parts](uint32 rows) { return Max(rows / parts, Min(rows, few_rows)); };
    search->radius_k = part_of(search->radius_k);
    search->wider_k = part_of(search->wider_k);
    search->threshold /= std::sqrt(static_cast<float>(parts));
    search->first_entries = Max(search->first_entries / parts, 1u);
}

}  // namespace

bool ask_shards(Relation index, const MetaPage& meta, const MirrorKey& key, const Shards& shards,
                const WantedSearch& wanted, ServiceAnswer* answer) {
    Given given = {};
    Parts parts = {};
    uint8 numbers[most_devices];
    for (uint32 i = 0; i < shards.parts; ++i) {
        const uint32 owners = shards.owners(i);
        // Where none of them serves, the lists are for any.
        given.owners[i] = owners == 0 ? 0 : __builtin_ctz(owners);
        AskedPart* part = &parts.items[parts.count];
        part->owners = route_owners(key, owners, wanted.devices);
        if (part->owners.count == 0) continue;
        part->asks = true;
        begin_answer(&part->answer, wanted.k);
        numbers[parts.count++] = static_cast<uint8>(i);
    }
    WantedSearch search = wanted;
    search.wants_versions = true;
    if (parts.count > 1) share_effort(static_cast<uint32>(parts.count), &search);
    // Ends: a device is asked once, and once more when it got the model.
    for (bool again = parts.count > 0; again && !is_over(answer->patience);) {
        again = ask_parts(index, meta, key, search, answer->patience, &parts);
        // Sending models to several devices may have taken all of it, though each gave signs of
        // life.
        if (again && insists_on_service()) answer->patience = search_patience();
    }
    for (int i = 0; i < parts.count; ++i) {
        const AskedPart& part = parts.items[i];
        given.owners[numbers[i]] = device_number(part.device());
        if (!part.answered) continue;
        answer->asked |= uint32{1} << device_number(part.device());
        given.devices[given.count] = device_number(part.device());
        given.answers[given.count++] = &part.answer;
        const int last = given.count - 1;
        if (given.answers[last]->probed_count <= given.answers[0]->probed_count) continue;
        std::swap(given.answers[0], given.answers[last]);
        std::swap(given.devices[0], given.devices[last]);
    }
    answer->device = nullptr;
    const bool merged =
        given.count > 0 && merge_parts(index, meta, key, shards, wanted.k, given, answer);
    for (int i = 0; i < parts.count; ++i) free_answer(&parts.items[i].answer);
    return merged;
}

}  // namespace pgwarp
