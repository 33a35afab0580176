// Rounds of a scan that the service answers.
//
// The service searches the same groups of lists as lists.cpp. A round takes one search, or several:
// a search gives at most service_most_k candidates, and the next resumes after the last of them.
// Every answer is verified against the pages by itself (completion.h): lists may change from one to
// the next. A search of more than service_most_lists lists is several, whose answers become one.
//
// The order of candidates and of lists is the service's own. So a search resumes only after one of
// the same kind (filtered, list_store.h) that had the same lists, and only if no candidates from
// pages came between. Otherwise the search takes the group from its first candidate again, and the
// scan skips what it has ranked.
//
// A search decides on its lists as one of pages does (kernels/list_plan.h), among those that it was
// given. Where it would have taken more, the scan asks again.

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

template <typename Item>
Item* joined(Item* all, uint32 count, const Item* more, uint32 more_count) {
    all = static_cast<Item*>(repalloc_huge(all, (Size{count} + more_count) * sizeof(Item)));
    memcpy(all + count, more, more_count * sizeof(Item));
    return all;
}

// Adds an answer that has other lists than the ones before.
void add_answer(const WantedSearch& search, const ServiceAnswer& part, ServiceAnswer* all) {
    add_candidates(search.k, part, false, all);
    if (part.probed_count > 0) {
        all->probed = joined(all->probed, all->probed_count, part.probed, part.probed_count);
        if (all->devices)
            all->devices = joined(all->devices, all->probed_count, part.devices, part.probed_count);
    }
    all->probed_count += part.probed_count;
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
// search->probes, and adds them. Sets search->probes to the lists that were taken.
bool ask_further(IndexScanDesc scan, ScanState* s, WantedSearch* search, ServiceAnswer* answer) {
    const uint32 end = search->probes;
    const bool decides = search->plan.threshold > 0;
    while (search->first_probe + answer->probed_count < end) {
        WantedSearch part = *search;
        part.first_probe = search->first_probe + answer->probed_count;
        part.probes = std::min(end, part.first_probe + service_most_lists);
        part.filtered = true;
        part.device = answer->device;
        part.devices = answer->asked;
        part.wants_versions = true;
        if (decides) {
            if (answer->found_count >= part.plan.k)
                part.plan.radius = answer->found[part.plan.k - 1].distance;
            part.plan.entries = static_cast<float>(answer->searched.passed);
        }
        ServiceAnswer some;
        if (!ask_once(scan, s, part, &some)) return false;
        // What an answer lacks is sent to the device that gave it.
        if (some.device != answer->device) {
            free_answer(&some);
            s->report.reason = other_lists;
            return false;
        }
        const bool empty = some.probed_count == 0;
        const bool stops = decides && !some.would_take_more;
        add_answer(*search, some, answer);
        answer->deadline = some.deadline;
        free_answer(&some);
        if (stops) break;
        if (empty) {
            s->report.reason = other_lists;
            return false;
        }
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

// Asks the service for the lists of the search; again, for more of them, where it would have taken
// more.
bool ask_for_lists(IndexScanDesc scan, ScanState* s, WantedSearch* search, ServiceAnswer* answer) {
    const WantedSearch part = first_part(s, *search);
    if (!ask_once(scan, s, part, answer)) return false;
    if (!(search->plan.threshold > 0))
        return part.probes == search->probes || ask_further(scan, s, search, answer);
    const uint32 all = bounded_probes(s->meta.lists, s->meta);
    // Lists that the service does not have yet count as empty, and say nothing of how many the
    // search would have taken.
    const bool more = answer->would_take_more && part.probes < all && all_resident(*answer);
    if (more && part.probes == most_lists(s) && search->filtered && part.wants_versions) {
        search->probes = all;
        return ask_further(scan, s, search, answer);
    }
    if (more) {
        free_answer(answer);
        // To rank lists takes time, too, for all searches of the batch.
        constexpr uint32 times = 8;
        search->probes = std::min(most_lists(s), times * part.probes);
        // More lists than one search has are asked for in parts, whose answers become one.
        search->filtered |= part.probes == most_lists(s);
        return ask_for_lists(scan, s, search, answer);
    }
    search->probes = answer->taken;
    return true;
}

// An answer that is current with the pages, and the candidates of the lists that it has not.
struct TakenAnswer {
    WantedSearch search;
    ServiceAnswer answer;
    uint64* lists;  // of the answer: see ServiceProgress
    // The nearest by code first; behind these some whose code is unknown. Those of a refined answer
    // are not among them. In the memory for candidates.
    Candidate* candidates;
    Size by_code;
    Size unknown;
    Size found;     // candidates that the search has given, of search.k
    bool complete;  // `candidates` are all of these lists
    Candidate floor;
    bool from_pages;  // some are
    Size ranked;      // of by_code
    Neighbor last;    // of these
};
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
    if ((answer.complete || answer.some_complete) && !search.filtered) return true;
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

// Notes how far the scan came by an answer whose candidates it has ranked.
void note_answer(ScanState* s, const TakenAnswer& taken) {
    ServiceProgress& service = s->service;
    if (service.lists) pfree(service.lists);
    service.lists = taken.lists;
    service.device = taken.answer.device;
    service.devices = taken.answer.asked;
    s->walk.stage = GroupStage::walked;
    const bool all = taken.ranked == taken.by_code && !taken.answer.searched.more;
    service.resumes = taken.search.filtered && !all && taken.ranked > 0;
    if (taken.search.filtered && all) {
        finish_group(s);
    } else if (service.resumes) {
        service.floor = taken.last;
        s->served.repeated = 0;
    }
}

// --- answers

void prepare_completion(void* state) {
    const GatherState* gather = static_cast<GatherState*>(state);
    ScanState* s = gather->scan;
    read_tables(gather->index, s);
    // The service may have searched any of the lists.
    compare_lists(gather->index, s->meta, &s->lists, s->meta.lists);
}

// For a refined answer: its candidates wait for visits, and so do those from pages, which are
// scored here. Candidates whose code is unknown are visited.
void refine_and_remember(IndexScanDesc scan, ScanState* s, const TakenAnswer& taken) {
    const ServiceAnswer& answer = taken.answer;
    Candidate* unknown = taken.candidates + taken.by_code;
    const Size count = taken.by_code + taken.unknown + answer.found_count;
    auto* all = static_cast<Candidate*>(palloc(Max(count, Size{1}) * sizeof(Candidate)));
    Candidate* from_device = std::copy_n(taken.candidates, taken.by_code + taken.unknown, all);
    for (uint32 i = 0; i < answer.found_count; ++i)
        from_device[i] = {answer.found[i].distance, answer.found[i].id};
    uint64* served = sorted_ids(all, count);
    std::sort(from_device, from_device + answer.found_count);
    rank_candidates(scan, s, unknown, taken.unknown);
    if (taken.by_code > 0 && !refine_candidates(scan, s, taken.candidates, taken.by_code))
        rank_candidates(scan, s, taken.candidates, taken.by_code);
    wait_for_visits(scan, s, from_device, answer.found_count, answer.left_out);
    pfree(all);
    remember(s, served, count);
}

// False: the answer is not current, or does not go on where the ones before ended.
bool take_answer(IndexScanDesc scan, ScanState* s, const WantedSearch& search,
                 const ServiceAnswer& answer, TakenAnswer* taken) {
    Relation index = scan->indexRelation;
    uint64* lists = group_lists(answer);
    if (!goes_on(s, search, answer, lists)) {
        s->report.reason = other_lists;
        return false;
    }
    if (search.filtered && answer.found_count == 0 && answer.searched.more) {
        s->report.reason = "too many rows are equally far";
        return false;
    }
    clear_vector_cache(s->cache);
    if (answer.refined) decide_to_refine(s);
    Candidate* room = reserve_candidates(s, Size{search.k} + most_appended);
    CandidateSelection selection(room, search.k, no_floor);
    GatherState gather{index, s, &selection};
    const Completion completion = complete_answer(
        index, s->meta, answer, {prepare_completion, gather_from, &gather, search.conditions});
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
        search.plan.threshold > 0 ? search.probes : std::max(s->report.probes, search.probes);
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
              completion.read_lists > 0 || completion.visited,
              0,
              {}};
    return true;
}

// Where the scan stands after its candidates were ranked.
void leave_answer(IndexScanDesc scan, ScanState* s, const TakenAnswer& taken) {
    const WantedSearch& search = taken.search;
    const ServiceAnswer& answer = taken.answer;
    s->group.end = Max(search.probes, 1u);
    s->served.repeated = s->served.count;
    if (s->bound.given || taken.from_pages) {
        // Candidates came from pages and from the service, in two orders: no floor.
        begin_lists_again(s);
        s->service.left_more = !taken.complete || answer.searched.more;
        if (s->bound.given && taken.by_code >= search.k &&
            taken.floor.distance > code_limit(s->bound))
            end_group_at_limit(scan->indexRelation, s);
    } else {
        note_answer(s, taken);
    }
}

// Whether the service may answer the next round of the lists; if not, the report says why.
bool may_ask_service(Relation index, ScanState* s) {
    const char* why;
    // A scan that has returned rows goes on by pages, even if the service is insisted on.
    if (s->service.done ||
        (s->report.rounds > 0 &&
         (!service_serves(&why) || (insists_on_service() && service_is_silent()))))
        return false;
    if (s->conditions.rows) {
        s->report.reason = "the scan searches rows of a bitmap";
        return false;
    }
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

// Plans the next search of a scan. False: it will not ask the service, or for too much.
bool plan_next(ScanState* s) {
    // A scan whose search of ask_ahead() had no answer asks again, if it still may.
    if (s->service.planned && s->service.planned->answered) return true;
    s->service.planned = nullptr;
    const IndexScanDesc scan = scan_of(s);
    if (s->conditions.never || s->exact.wanted || s->group.begin >= s->group.end) return false;
    s->report.fell_back = may_ask_service(scan->indexRelation, s);
    if (!s->report.fell_back) return false;
    in_memory_of(s, [&] {
        auto* plan = static_cast<PlannedSearch*>(palloc(sizeof(PlannedSearch)));
        if (plan_search(scan, s, plan)) s->service.planned = plan;
    });
    return s->service.planned != nullptr;
}

// The next search of a partition's scan.
bool plan_member(void* state, int number, SearchAhead* search) {
    ScanState* s = static_cast<ScanState* const*>(state)[number];
    if (!plan_next(s)) return false;
    const PlannedSearch* plan = s->service.planned;
    WantedSearch wanted = plan->search;
    begin_search(s, plan->left, plan->refined, &wanted);
    search->index = scan_of(s)->indexRelation;
    search->meta = &s->meta;
    search->wanted = first_part(s, wanted);
    search->context = s->context;
    return true;
}

// A part of a round that the service answers.
struct ServedPart {
    ScanState* s;
    PlannedSearch plan;
    Size left;  // to ask for
    bool first;
    bool asks;      // for the next answer
    bool answered;  // nothing is left to the lists
    TakenAnswer taken;
    Candidate* by_code;  // a copy of its candidates
};

// Asks for the next answer of the part, and takes it.
void take_next(ServedPart* part) {
    ScanState* s = part->s;
    begin_search(s, part->left, part->plan.refined, &part->plan.search);
    ServiceAnswer answer;
    part->asks = ask_for_lists(scan_of(s), s, &part->plan.search, &answer) &&
                 take_answer(scan_of(s), s, part->plan.search, answer, &part->taken);
}

// Ranks the candidates of an answer whose code is unknown. The others are to be ranked with those
// of other parts.
RankedPart begin_ranking(ServedPart* part) {
    ScanState* s = part->s;
    const TakenAnswer& taken = part->taken;
    const Size count = taken.by_code + taken.unknown;
    part->by_code = static_cast<Candidate*>(palloc(Max(count, Size{1}) * sizeof(Candidate)));
    std::copy_n(taken.candidates, count, part->by_code);
    expect_rows(s, count);
    rank_candidates(scan_of(s), s, taken.candidates + taken.by_code, taken.unknown);
    // A filtered search says whether there are more; a plain one has fewer than k if not.
    const bool complete = taken.complete && !taken.answer.searched.more &&
                          (taken.search.filtered || taken.found < taken.search.k);
    const double known_until = !complete && taken.by_code > 0
                                   ? part->by_code[taken.by_code - 1].distance
                                   : std::numeric_limits<double>::infinity();
    return {s, taken.candidates, taken.by_code, known_until, false, 0};
}

void end_ranking(ServedPart* part, Size ranked) {
    TakenAnswer& taken = part->taken;
    Candidate* by_code = part->by_code;
    taken.ranked = ranked;
    if (ranked > 0)
        taken.last = {static_cast<float>(by_code[ranked - 1].distance), by_code[ranked - 1].id};
    std::copy_n(by_code + taken.by_code, taken.unknown, by_code + ranked);
    remember(part->s, sorted_ids(by_code, ranked + taken.unknown), ranked + taken.unknown);
    pfree(by_code);
}

// Ranks the candidates of all answers that were taken, those by code in one order.
void rank_answers(const ScanSearch& search, ServedPart* parts, int count) {
    auto* ranked = static_cast<RankedPart*>(palloc(static_cast<Size>(count) * sizeof(RankedPart)));
    int by_code = 0;
    // Nearer rows are known from the searches before, or from other parts.
    bool goes_on = true;
    for (int i = 0; i < count; ++i) {
        ServedPart* part = &parts[i];
        if (!part->asks) continue;
        in_memory_of(part->s, [&] {
            if (part->taken.answer.refined)
                refine_and_remember(scan_of(part->s), part->s, part->taken);
            else
                ranked[by_code++] = begin_ranking(part);
        });
        goes_on &= part->s->service.resumes || (search.count > 1 && part->s->report.rounds > 0);
    }
    if (by_code > 0) rank_until_sure(search, ranked, by_code, goes_on);
    by_code = 0;
    for (int i = 0; i < count; ++i)
        if (parts[i].asks && !parts[i].taken.answer.refined)
            in_memory_of(parts[i].s, [&] { end_ranking(&parts[i], ranked[by_code++].ranked); });
    pfree(ranked);
}

// Notes how far the part came, and whether it asks again. Only a part that is `alone` can tell from
// its own rows that rows are lacking.
void leave_next(ServedPart* part, bool alone) {
    ScanState* s = part->s;
    WantedSearch& search = part->plan.search;
    leave_answer(scan_of(s), s, part->taken);
    free_answer(&part->taken.answer);
    // The next round, for twice as many, has to find what the device left out.
    if (part->first)
        s->goal.candidates = part->plan.refined
                                 ? std::max<Size>(part->plan.wanted, (search.k + 1) / 2)
                                 : part->plan.wanted;
    part->left -= std::min(part->left, part->taken.found);
    // Later searches are of the lists that the first has taken.
    search.plan = {};
    // If the user set the effort, all candidates are ranked.
    const bool lacks_rows = alone && s->round.added < wanted_of_round(s);
    part->asks = part->left > 0 && s->service.resumes &&
                 (s->round.unsure || !s->goal.effort.by_error || lacks_rows);
    // Lists that were read from pages end the service's part, maybe before the round has all.
    part->answered = part->left == 0 || !s->service.done || s->bound.given;
}

}  // namespace

void ask_members(ScanState* const* parts, int count) {
    auto* searches =
        static_cast<SearchAhead*>(palloc0(static_cast<Size>(Max(count, 1)) * sizeof(SearchAhead)));
    ask_ahead(searches, count, {plan_member, const_cast<ScanState**>(parts)});
    for (int i = 0; i < count; ++i) {
        PlannedSearch* plan = parts[i]->service.planned;
        if (!plan) continue;
        plan->answered = searches[i].answered;
        plan->answer = searches[i].answer;
    }
    pfree(searches);
}

int gather_from_service(const ScanSearch& search, ScanState** parts, int count) {
    if (count == 0) return 0;
    auto* served = static_cast<ServedPart*>(palloc0(static_cast<Size>(count) * sizeof(ServedPart)));
    if (count > 1) ask_members(parts, count);
    for (int i = 0; i < count; ++i) {
        ScanState* s = parts[i];
        ServedPart* part = &served[i];
        part->s = s;
        part->first = !s->report.by_service;
        part->asks = plan_next(s);
        if (!part->asks) continue;
        part->plan = *s->service.planned;
        part->left = part->plan.left;
        s->service.planned = nullptr;
        s->service.given = part->plan.answered ? &part->plan.answer : nullptr;
    }
    const auto asks = [](const ServedPart& part) { return part.asks; };
    while (std::any_of(served, served + count, asks)) {
        for (int i = 0; i < count; ++i)
            if (served[i].asks)
                in_memory_of(parts[i], [&] {
                    served[i].answered = false;
                    take_next(&served[i]);
                });
        rank_answers(search, served, count);
        for (int i = 0; i < count; ++i)
            if (served[i].asks)
                in_memory_of(parts[i], [&] { leave_next(&served[i], search.count == 1); });
    }
    int left = 0;
    for (int i = 0; i < count; ++i) {
        ScanState* s = served[i].s;
        s->service.given = nullptr;
        s->report.fell_back &= !served[i].answered;
        if (served[i].answered) continue;
        if (s->report.by_service && !s->service.done) begin_lists_again(s);
        s->service.done = true;
        parts[left++] = s;
    }
    pfree(served);
    return left;
}

}  // namespace pgwarp
