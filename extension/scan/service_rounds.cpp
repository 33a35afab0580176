// Rounds of a scan that the service answers.
//
// The service searches the same groups of lists as lists.cpp. A round takes one search, or several:
// a search gives at most service_most_k candidates, and the next resumes after the last of them.
// Every answer is verified against the pages by itself (completion.h): lists may change from one to
// the next. A search of more than service_most_lists lists is several, whose answers become one.
//
// The order of candidates and of lists is the service's own. So a search resumes only after one of
// the same kind (narrowed, list_store.h) that had the same lists, and only if no candidates from
// pages came between. Otherwise the search takes the group from its first candidate again, and the
// scan skips what it has ranked.
//
// With conditions, the first answer shows how many lists the scan needs (widening.h). Where they
// are more than it had, the scan asks again.

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "kernels/mirror.h"
#include "extension/index/effort.h"
#include "extension/index/lists.h"
#include "extension/scan/gather.h"
#include "extension/scan/service_rounds.h"
#include "extension/scan/tables.h"
#include "extension/settings.h"

namespace pgwarp {

namespace {

constexpr char other_lists[] = "the service has other lists";

bool all_resident(const ServiceAnswer& answer) {
    return answer.complete ||
           std::all_of(answer.probed, answer.probed + answer.probed_count,
                       [](const MirrorProbe& probe) { return probe.version.resident != 0; });
}

// Whether the answer's lists are enough for the conditions.
bool answer_covers(const ScanState* s, const WantedSearch& search, const ServiceAnswer& answer) {
    if (search.near_k == 0 || search.probes >= bounded_probes(s->meta.lists, s->meta)) return true;
    // Of many rows that are as far as each other, none may have been found.
    if (answer.found_count < search.near_k) return answer.searched.more != 0;
    return all_resident(answer) && answer.counts_near &&
           covers(answer.searched, search.probes, 1 - settings.target_recall);
}

template <typename Item>
Item* joined(Item* all, uint32 count, const Item* more, uint32 more_count) {
    all = static_cast<Item*>(repalloc_huge(all, (Size{count} + more_count) * sizeof(Item)));
    memcpy(all + count, more, more_count * sizeof(Item));
    return all;
}

// Adds an answer that has other lists than the ones before. Returns how many of the candidates in
// the union are from this answer.
uint32 add_answer(const WantedSearch& search, const ServiceAnswer& part, ServiceAnswer* all) {
    add_candidates(search.k, part, false, all);
    if (part.probed_count > 0) {
        all->probed = joined(all->probed, all->probed_count, part.probed, part.probed_count);
        if (all->devices)
            all->devices = joined(all->devices, all->probed_count, part.devices, part.probed_count);
    }
    all->probed_count += part.probed_count;
    if (all->found_count == 0) return 0;
    const Neighbor& last = all->found[all->found_count - 1];
    return static_cast<uint32>(
        std::count_if(part.found, part.found + part.found_count, [&last](const Neighbor& found) {
            return found.distance < last.distance ||
                   (found.distance == last.distance && found.id <= last.id);
        }));
}

// Whether the answer names a list twice: the service may order lists otherwise in another search.
bool names_twice(const ScanState* s, const ServiceAnswer& answer) {
    auto* named = static_cast<bool*>(palloc0(s->meta.lists * sizeof(bool)));
    bool twice = false;
    for (uint32 i = 0; i < answer.probed_count; ++i) {
        twice |= named[answer.probed[i].list];
        named[answer.probed[i].list] = true;
    }
    pfree(named);
    return twice;
}

bool ask_once(IndexScanDesc scan, ScanState* s, const WantedSearch& search, ServiceAnswer* answer) {
    if (s->service.given) {
        *answer = *s->service.given;
        s->service.given = nullptr;
        return true;
    }
    if (ask_for_candidates(scan->indexRelation, s->meta, search, answer)) return true;
    s->report.reason = answer->why;
    return false;
}

// Asks for lists behind those of the answer, one part of the search after the other, up to
// search->probes, and adds them. With `missed`, it ends where the lists to come have at most this
// share of the candidates, judged by how many each part had among the nearest, and sets
// search->probes.
bool ask_further(IndexScanDesc scan, ScanState* s, WantedSearch* search, double missed,
                 ServiceAnswer* answer) {
    const uint32 end = search->probes;
    uint32 small_parts = 0;  // one after the other that promise a small rest
    while (search->first_probe + answer->probed_count < end) {
        WantedSearch part = *search;
        part.first_probe = search->first_probe + answer->probed_count;
        part.probes = std::min(end, part.first_probe + service_most_lists);
        part.narrowed = true;
        part.near_k = 0;
        part.device = answer->device;
        part.devices = answer->asked;
        part.wants_versions = true;
        ServiceAnswer some;
        if (!ask_once(scan, s, part, &some)) return false;
        // What an answer lacks is sent to the device that gave it.
        if (some.device != answer->device) {
            free_answer(&some);
            s->report.reason = other_lists;
            return false;
        }
        const bool empty = some.probed_count == 0;
        const double added = add_answer(*search, some, answer);
        answer->patience = some.patience;
        const bool resident = all_resident(some);
        free_answer(&some);
        if (empty) {
            s->report.reason = other_lists;
            return false;
        }
        // Rows that pass may come in clumps: one part without any says little.
        constexpr uint32 enough_parts = 2;
        const double all = answer->found_count;
        const bool small = missed > 0 && resident && all >= search->k &&
                           rest_is_small({all, added, all - added}, missed);
        small_parts = small ? small_parts + 1 : 0;
        if (small_parts == enough_parts) break;
    }
    search->probes = search->first_probe + answer->probed_count;
    if (!names_twice(s, *answer)) return true;
    s->report.reason = other_lists;
    return false;
}

// The most lists of one search.
uint32 most_lists(const ScanState* s) {
    return std::min(bounded_probes(s->meta.lists, s->meta), service_most_lists);
}

// Asks for the lists of the search, by several searches if they are many.
bool ask_lists(IndexScanDesc scan, ScanState* s, WantedSearch* search, ServiceAnswer* answer) {
    const WantedSearch part = first_part(s, *search);
    if (!ask_once(scan, s, part, answer)) return false;
    if (search->threshold > 0) {
        // It would have taken more, as it would on the CPU. Lists that the service does not have
        // yet count as empty, and say nothing of that.
        if (answer->would_take_more && part.probes < most_lists(s) && all_resident(*answer)) {
            free_answer(answer);
            // To rank lists takes time, too, for all searches of the batch.
            constexpr uint32 times = 8;
            search->probes = std::min(most_lists(s), times * part.probes);
            return ask_lists(scan, s, search, answer);
        }
        search->probes = answer->taken;
        return true;
    }
    return part.probes == search->probes || ask_further(scan, s, search, 0, answer);
}

}  // namespace

bool ask_for_lists(IndexScanDesc scan, ScanState* s, WantedSearch* search, ServiceAnswer* answer,
                   bool* covered) {
    const uint32 all = bounded_probes(s->meta.lists, s->meta);
    for (bool first = true;; first = false) {
        if (!ask_lists(scan, s, search, answer)) return false;
        *covered = answer_covers(s, *search, *answer);
        if (!*covered && !all_resident(*answer)) return true;
        if (first && search->near_k > 0)
            note_list_width(s->meta.build_id, first_share(scan), *covered);
        if (*covered) return true;
        if (search->probes >= service_most_lists) {
            // How near entries are spread is known of one search only.
            search->probes = all;
            search->narrowed = true;
            *covered = true;
            return ask_further(scan, s, search, 1 - settings.target_recall, answer);
        }
        free_answer(answer);
        constexpr uint32 step = 4;
        uint32 more = step * search->probes;
        const double entries = entries_in(scan, s, search->probes);
        const double passed = std::max<double>(answer->searched.passed, 0.5);
        if (entries > 0) more = std::max(more, probes_for(s, std::min(passed / entries, 1.0)));
        search->probes = std::min({more, all, service_most_lists});
    }
}

namespace {

// --- groups

// The lists of the group in the answer, with their generations, in the current memory context. A
// list that lost an entry has another generation, and its entries have other places: a device may
// then round their distances otherwise. So may another device.
constexpr int device_shift = 52;
static_assert(max_lists <= 1 << (device_shift - 32));
uint32 list_of(uint64 named) {
    return static_cast<uint32>(named >> 32) & ((1u << (device_shift - 32)) - 1);
}
uint64* group_lists(const ServiceAnswer& answer) {
    const uint32 count = answer.probed_count;
    auto* lists = static_cast<uint64*>(palloc(Max(count, 1u) * sizeof(uint64)));
    if (answer.complete) {
        if (count > 0) memcpy(lists, answer.lists, count * sizeof(uint64));
        return lists;
    }
    for (uint32 i = 0; i < count; ++i) {
        lists[i] = list_and_generation(answer.probed[i].list, answer.probed[i].version);
        if (answer.devices) lists[i] |= uint64{answer.devices[i]} << device_shift;
    }
    return lists;
}

// Whether the answer goes on where the ones before ended: with lists of no group before, and with
// the same lists where it resumes. Sorts both.
bool goes_on(const ScanState* s, const WantedSearch& search, const ServiceAnswer& answer,
             uint64* lists) {
    // A complete answer to a plain search names no lists: the scan begins with it. So it does where
    // a part of the answer is complete.
    if ((answer.complete || answer.some_complete) && !search.narrowed) return true;
    const uint32 count = search.probes - search.first_probe;
    if (answer.probed_count != count) return false;
    for (uint32 i = 0; i < count && s->service.finished; ++i)
        if (s->service.finished[list_of(lists[i])]) return false;
    if (!s->service.resumes) return true;
    // Another device may have rounded the floor otherwise.
    if (answer.device != s->service.device) return false;
    std::sort(lists, lists + count);
    std::sort(s->service.lists, s->service.lists + count);
    return std::equal(lists, lists + count, s->service.lists);
}

// The group has no further candidates: the next one begins, as end_group() of lists.cpp has it.
void finish_group(ScanState* s) {
    ServiceProgress& service = s->service;
    if (!service.finished)
        service.finished = static_cast<bool*>(palloc0(s->meta.lists * sizeof(bool)));
    const uint32 size = s->group.end - s->group.begin;
    for (uint32 i = 0; i < size; ++i) service.finished[list_of(service.lists[i])] = true;
    service.resumes = false;
    const uint32 end = std::min(bounded_probes(s->meta.lists, s->meta), s->group.end + 2 * size);
    s->group.begin = s->group.end;
    s->group.end = end;
    s->served.repeated = 0;
}

// Where the scan stands after an answer whose candidates it has ranked.
void note_answer(ScanState* s, const WantedSearch& search, const ServiceAnswer& answer,
                 uint64* lists) {
    ServiceProgress& service = s->service;
    if (service.lists) pfree(service.lists);
    service.lists = lists;
    service.device = answer.device;
    service.devices = answer.asked;
    if (search.narrowed && !answer.searched.more) {
        // A filter may ask for more lists in the first group, which ends in the next round
        // otherwise.
        service.resumes = false;
        const bool waits = s->goal.filtered > 0 && s->report.rounds == 0 && !s->goal.aims;
        if (!waits || search.probes >= bounded_probes(s->meta.lists, s->meta)) finish_group(s);
        return;
    }
    service.resumes = search.narrowed;
    if (!service.resumes) return;
    service.floor = answer.found[answer.found_count - 1];
    s->served.repeated = 0;
}

// --- answers

void prepare_completion(void* state) {
    const GatherState* gather = static_cast<GatherState*>(state);
    ScanState* s = gather->scan;
    read_tables(gather->index, s);
    // The service's lists may be any.
    compare_lists(gather->index, s->meta, &s->lists, s->meta.lists);
}

// Ranks candidates that are in the order of their codes, and behind them some whose code is
// unknown. A search that is narrowed may go on after the last of them, so all are ranked.
void rank_and_remember(IndexScanDesc scan, ScanState* s, Candidate* candidates, Size by_code,
                       Size unknown, bool narrowed) {
    const Size count = by_code + unknown;
    if (narrowed || !may_rank_fewer(s)) {
        uint64* served = sorted_ids(candidates, count);
        rank_candidates(scan, s, candidates, count);
        remember(s, served, count);
        return;
    }
    auto* served = static_cast<uint64*>(palloc(Max(count, Size{1}) * sizeof(uint64)));
    for (Size i = 0; i < unknown; ++i) served[i] = candidates[by_code + i].id;
    for (Size i = 0; i < by_code; ++i) served[unknown + i] = candidates[i].id;
    expect_rows(s, count);
    rank_candidates(scan, s, candidates + by_code, unknown);
    const Size ranked = unknown + rank_until_sure(scan, s, candidates, by_code);
    std::sort(served, served + ranked);
    remember(s, served, ranked);
}

}  // namespace

void refine_and_remember(IndexScanDesc scan, ScanState* s, const TakenAnswer& taken) {
    const ServiceAnswer& answer = taken.answer;
    Candidate* unknown = taken.candidates + taken.by_code;
    const Size count = taken.by_code + taken.unknown + answer.found_count;
    auto* all = static_cast<Candidate*>(palloc(Max(count, Size{1}) * sizeof(Candidate)));
    Candidate* from_device = std::copy_n(taken.candidates, taken.by_code + taken.unknown, all);
    for (uint32 i = 0; i < answer.found_count; ++i)
        from_device[i] = {answer.found[i].distance, answer.found[i].id};
    uint64* served = sorted_ids(all, count);
    rank_candidates(scan, s, unknown, taken.unknown);
    if (taken.by_code > 0 && !refine_candidates(scan, s, taken.candidates, taken.by_code))
        rank_candidates(scan, s, taken.candidates, taken.by_code);
    wait_for_visits(scan, s, from_device, answer.found_count, answer.left_out);
    pfree(all);
    remember(s, served, count);
}

bool take_answer(IndexScanDesc scan, ScanState* s, const WantedSearch& search,
                 const ServiceAnswer& answer, TakenAnswer* taken) {
    Relation index = scan->indexRelation;
    uint64* lists = group_lists(answer);
    if (!goes_on(s, search, answer, lists)) {
        s->report.reason = other_lists;
        return false;
    }
    if (search.narrowed && answer.found_count == 0 && answer.searched.more) {
        s->report.reason = "too many rows are as far as each other";
        return false;
    }
    clear_vector_cache(s->cache);
    if (answer.refined) decide_to_refine(s);
    Candidate* room = reserve_candidates(s, Size{search.k} + most_appended);
    CandidateSelection selection(room, search.k, no_floor);
    GatherState gather{index, s, &selection};
    const Completion completion = complete_answer(
        index, s->meta, answer, {prepare_completion, gather_from, &gather, search.conditions});
    reset_widening(&s->widening);
    if (!completion.current) {
        s->report.reason = completion.because;
        return false;
    }
    for (uint32 i = 0; i < answer.probed_count && answer.probed; ++i) {
        const uint32 list = answer.probed[i].list;
        check_snapshot(index, s->meta, &list, 1, scan->xs_snapshot);
    }
    for (uint32 i = 0; i < answer.found_count && !answer.refined; ++i)
        selection.offer(answer.found[i].distance, answer.found[i].id);
    const CandidateSelection::Result result = selection.finish();
    constexpr double unknown = std::numeric_limits<double>::quiet_NaN();
    for (uint32 i = 0; i < completion.appended_count; ++i)
        room[result.count + i] = {unknown, completion.appended[i]};
    pfree(completion.appended);
    s->report.by_service = true;
    // The scan began with the mean of queries that decide by themselves.
    s->report.probes =
        search.threshold > 0 ? search.probes : std::max(s->report.probes, search.probes);
    s->report.lists_read += completion.read_lists;
    s->report.lists_grown = completion.grown_lists;
    *taken = {search,
              answer,
              lists,
              room,
              result.count,
              completion.appended_count,
              answer.refined ? search.k : result.count,
              result.complete,
              result.floor,
              completion.read_lists > 0 || completion.visited};
    return true;
}

void leave_answer(IndexScanDesc scan, ScanState* s, const TakenAnswer& taken) {
    const WantedSearch& search = taken.search;
    const ServiceAnswer& answer = taken.answer;
    s->group.end = search.probes;
    s->served.repeated = s->served.count;
    if (s->bound.given || taken.from_pages) {
        // Of what came from pages and from the service the nearest were ranked: no floor.
        begin_lists_again(s);
        s->service.left_more = !taken.complete || answer.searched.more;
        if (s->bound.given && taken.by_code >= search.k &&
            taken.floor.distance > code_limit(s->bound))
            end_group_at_limit(scan->indexRelation, s);
    } else {
        note_answer(s, search, answer, taken.lists);
    }
    s->widening.passing = answer.searched.passed;
    s->widening.entries = std::max(entries_in(scan, s, search.probes), s->widening.passing);
}

namespace {

// Ranks the candidates of one answer, and sets *ranked to their number. It ranks the first `least`
// whatever the others are worth. False: the answer is not current, or does not go on where the ones
// before ended.
bool rank_answer(IndexScanDesc scan, ScanState* s, const WantedSearch& search,
                 const ServiceAnswer& answer, Size least, Size* ranked) {
    TakenAnswer taken;
    if (!take_answer(scan, s, search, answer, &taken)) return false;
    *ranked = taken.found;
    if (answer.refined) {
        refine_and_remember(scan, s, taken);
    } else {
        const Size worth = worth_ranking(s, taken.candidates, taken.by_code, least);
        std::move(taken.candidates + taken.by_code,
                  taken.candidates + taken.by_code + taken.unknown, taken.candidates + worth);
        rank_and_remember(scan, s, taken.candidates, worth, taken.unknown, search.narrowed);
    }
    leave_answer(scan, s, taken);
    return true;
}

}  // namespace

bool may_ask_service(Relation index, ScanState* s) {
    const char* why;
    // Who has got rows gets the others, too, and no error.
    if (s->service.done ||
        (s->report.rounds > 0 &&
         (!service_serves(&why) || (insists_on_service() && service_is_silent()))))
        return false;
    if (!service_usable(index, &s->report.reason)) return false;
    if (!fits_service(s->conditions.all())) {
        s->report.reason = "too many conditions for the service";
        return false;
    }
    // The scan remembers what it has ranked, in memory, and merges that with every answer.
    constexpr Size most_served = 1 << 18;
    return s->report.rounds == 0 ||
           s->served.count + s->goal.candidates <= std::min(most_candidates(), most_served);
}

// --- rounds

namespace {

// Plans the first round of a scan. False: it will not ask the service, or for too much.
bool plan_first(IndexScanDesc scan, ScanState* s) {
    if (s->conditions.never || s->exact.wanted || s->group.begin >= s->group.end ||
        !may_ask_service(scan->indexRelation, s))
        return false;
    const MemoryContext before = MemoryContextSwitchTo(s->context);
    auto* plan = static_cast<PlannedSearch*>(palloc(sizeof(PlannedSearch)));
    if (plan_search(scan, s, plan)) s->service.planned = plan;
    MemoryContextSwitchTo(before);
    return s->service.planned != nullptr;
}

// The first round of a partition's scan.
bool plan_member(void* state, int number, SearchAhead* search) {
    const IndexScanDesc scan = static_cast<const IndexScanDesc*>(state)[number];
    auto* s = static_cast<ScanState*>(scan->opaque);
    if (!plan_first(scan, s)) return false;
    const PlannedSearch* plan = s->service.planned;
    WantedSearch wanted = plan->search;
    begin_search(s, plan->left, plan->refined, &wanted);
    search->index = scan->indexRelation;
    search->meta = &s->meta;
    search->wanted = first_part(s, wanted);
    search->context = s->context;
    return true;
}

}  // namespace

void ask_members(IndexScanDesc* scans, int count) {
    auto* searches =
        static_cast<SearchAhead*>(palloc0(static_cast<Size>(Max(count, 1)) * sizeof(SearchAhead)));
    ask_ahead(searches, count, {plan_member, scans});
    for (int i = 0; i < count; ++i) {
        PlannedSearch* plan = static_cast<ScanState*>(scans[i]->opaque)->service.planned;
        if (!plan) continue;
        plan->answered = searches[i].answered;
        plan->answer = searches[i].answer;
    }
    pfree(searches);
}

double nearest_of_answer(const ScanState* s) {
    const PlannedSearch* plan = s->service.planned;
    if (!plan || !plan->answered || plan->refined || plan->answer.found_count == 0)
        return std::numeric_limits<double>::infinity();
    return plan->answer.found[0].distance;
}

bool gather_from_service(IndexScanDesc scan, ScanState* s) {
    const bool first = !s->report.by_service;
    PlannedSearch plan;
    if (s->service.planned) {
        plan = *s->service.planned;
        s->service.planned = nullptr;
    } else if (!plan_search(scan, s, &plan)) {
        return false;
    }
    s->service.given = plan.answered ? &plan.answer : nullptr;
    const bool refined = plan.refined;
    Size left = plan.left;
    WantedSearch search = plan.search;
    do {
        begin_search(s, left, refined, &search);
        ServiceAnswer answer;
        bool covered;
        Size ranked;
        if (!ask_for_lists(scan, s, &search, &answer, &covered) ||
            !rank_answer(scan, s, search, answer, plan.wanted, &ranked))
            return false;
        free_answer(&answer);
        // The next round, for twice as many, has to find what the device left out.
        if (first)
            s->goal.candidates =
                refined ? std::max<Size>(plan.wanted, (search.k + 1) / 2) : plan.wanted;
        left -= std::min(left, ranked);
        // The lists show how many of them the conditions need.
        if (!covered) return false;
    } while (left > 0 && s->service.resumes);
    s->service.given = nullptr;
    // Lists that were read from pages end the service's part, maybe before the round has all.
    return left == 0 || !s->service.done || s->bound.given;
}

}  // namespace pgwarp
