// Candidates of a scan from the lists: the lists nearest to the query, in groups, and their entries
// by distance by code.
//
// A scan searches for a number of nearest rows. Its first walk takes as many lists as these need
// (kernels/list_plan.h); they are the first group. Where that does not give the rows that are
// wanted, because rows are not visible, do not pass a filter, or more of them are fetched, the scan
// begins again, for more rows, and skips what it has ranked (search_for_more()).
//
// Where memory does not hold as many candidates, it goes on behind those that it has, group by
// group. Candidates are ordered by (distance by code, TID), so one such pair, the floor, says where
// a round resumes in a group. A scan walks a group up to three times:
// - The first walk keeps as many candidates as the round wants. Most queries need no more.
// - The second walk, for a later round, keeps as many candidates as memory holds. Later rounds take
//   their candidates from these.
// - The third walk puts all remaining candidates into a CandidateOrder, which may spill to disk.
// So a scan to the end of the index reads each list at most three times. A scan with a bound reads
// it a few times more if its limit rises afterwards. The scan may keep TIDs that it read after its
// snapshot was taken for as long as it lasts.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <memory>

#include "extension/index/effort.h"
#include "extension/index/lists.h"
#include "extension/index/page.h"
#include "extension/scan/gather.h"
#include "extension/scan/state.h"
#include "extension/scan/tables.h"
#include "extension/limits.h"
#include "extension/settings.h"

extern "C" {
#include "miscadmin.h"
}

namespace pgwarp {

namespace {

// Sorts the lists of the current group to their places; lists after the group stay unordered until
// their group begins, or unknown, where lists have parents.
void order_group(Relation index, ScanState* s) {
    order_lists(index, s->meta, &s->lists, s->group.begin, s->group.end);
}

void rank_lists(Relation index, ScanState* s) {
    if (s->lists.ranked) return;
    read_tables(index, s);
    order_group(index, s);
    s->lists.ranked = true;
}

void gather_page(void* state, uint32 list, Page page, const EntryLayout& layout) {
    gather_from(state, list, page, layout, 0);
}

// --- all candidates beyond a floor

// Moves the candidates of one page to the order. The selection has room for one page's entries.
void order_page(void* state) {
    auto* gather = static_cast<GatherState*>(state);
    const CandidateSelection::Result page = gather->selection->finish_unsorted();
    const Candidate* candidates = gather->scan->candidates.items;
    for (Size i = 0; i < page.count; ++i) put_candidate(gather->ordered, candidates[i]);
    gather->selection->start_over();
}

// The floor of a selection that resumes after all candidates up to `limit` were taken.
Candidate floor_at(double limit) {
    return {limit, UINT64_MAX};
}

// Fixes the limit for a walk: the greatest distance by code worth ranking, as known at its start.
double begin_walk(ScanState* s) {
    s->walk.limit = code_limit(s->bound);
    return s->walk.limit;
}

void end_walk(ScanState* s) {
    s->group.floor = floor_at(s->walk.limit);
    s->walk.stage = GroupStage::ended;
}

void walk_group(IndexScanDesc scan, ScanState* s, GatherState* gather,
                void (*between_pages)(void* state)) {
    // Every group was put into its order when it began; what is behind it has no lists yet.
    if (s->group.end > s->lists.compared) order_group(scan->indexRelation, s);
    walk_lists(scan->indexRelation, s->meta, s->lists.order + s->group.begin,
               s->group.end - s->group.begin,
               {gather_page, gather, between_pages, nullptr, &gather->coming});
    check_snapshot(scan->indexRelation, s->meta, s->lists.order + s->group.begin,
                   s->group.end - s->group.begin, scan->xs_snapshot);
}

void order_candidates(IndexScanDesc scan, ScanState* s) {
    constexpr Size page_entries = max_page_entries;
    s->walk.ordered = open_candidate_order(scan_memory() / 4);
    CandidateSelection selection(reserve_candidates(s, page_entries), page_entries, s->group.floor,
                                 begin_walk(s));
    GatherState gather{scan->indexRelation, s, &selection};
    gather.ordered = s->walk.ordered;
    walk_group(scan, s, &gather, order_page);
    s->walk.stage = GroupStage::ordered;
}

// --- the nearest candidates beyond a floor

// Walks the group and keeps as many candidates as memory holds.
void hold_candidates(IndexScanDesc scan, ScanState* s) {
    const Size most = most_candidates();
    Candidate* room = reserve_candidates(s, most);
    CandidateSelection selection(room, most, s->group.floor, begin_walk(s));
    GatherState gather{scan->indexRelation, s, &selection};
    walk_group(scan, s, &gather, nullptr);
    const CandidateSelection::Result result = selection.finish_unsorted();
    s->walk.held = CandidateQueue(room, result.count);
    s->walk.held_all = result.complete;
    s->group.floor = result.floor;
    s->walk.stage = GroupStage::held;
}

// A part of the group's candidates, nearest first.
using Part = CandidateQueue::Part;

// --- first walks

// The first walk of a scan: the lists that its query takes, or those that it was given.
struct FirstWalk {
    CandidateSelection selection;
    GatherState gather;
    QueryWalk query;
    Candidate* items;  // of the selection
    uint32 walked;     // lists
    bool ended;
};

// Drops candidates that will not be ranked, whatever further lists have: with a lower bound, lists
// are scanned faster. This takes time: only when the selection has doubled.
void tighten_selection(const ScanState* s, QueryWalk* walk, CandidateSelection* selection) {
    if (!walk->effort->by_error || selection->count() < 2 * walk->tightened_at) return;
    const float shift = code_shift(s);
    const Size k = walk->walk.plan().k;
    const double kth = walk->common ? walk->common->kth : selection->distance_of(k);
    if (std::isinf(kth)) return;
    const CodeReach reach(*walk->effort, kth + shift, shift);
    selection->tighten(reach.kept() - shift, walk->least);
    walk->tightened_at = std::max(walk->tightened_at, selection->count());
}

// Whether the query takes the next list, too (kernels/list_plan.h).
bool takes_list(void* state, uint32 place) {
    const auto* gather = static_cast<GatherState*>(state);
    ScanState* s = gather->scan;
    QueryWalk* walk = gather->walk;
    const float term = s->lists.terms[s->lists.order[walk->first_place + place]];
    // walk_up_to() has asked for the first one.
    if (walk->walk.taken() > walk->first_place + place) return true;
    tighten_selection(s, walk, gather->selection);
    const SeenEntries& seen = s->seen;
    const bool takes = walk->common
                           ? walk->walk.takes(term, seen.entries, seen.passing, *walk->common)
                           : walk->walk.takes(term, seen.entries, seen.passing, *gather->selection);
    if (!takes) s->seen.score = walk->walk.score(term, seen.entries);
    return takes;
}

// Walks the lists that the query takes, of the first `end`.
void walk_up_to(FirstWalk* walk, uint32 end) {
    ScanState* s = walk->gather.scan;
    Relation index = walk->gather.index;
    const uint32 lists = bounded_probes(s->meta.lists, s->meta);
    walk->ended = end >= lists;
    end = std::min(end, lists);
    while (walk->walked < end) {
        if (walk->walked == s->group.end) {
            s->group.begin = walk->walked;
            s->group.end = std::min(lists, 2 * s->group.end);
            order_group(index, s);
        }
        const uint32* order = s->lists.order + walk->walked;
        const uint32 count = std::min(end, s->group.end) - walk->walked;
        walk->query.first_place = walk->walked;
        uint32 taken = 0;
        if (takes_list(&walk->gather, 0)) {
            taken = walk_lists(
                index, s->meta, order, count,
                {gather_page, &walk->gather, nullptr, nullptr, &walk->gather.coming, takes_list});
            check_snapshot(index, s->meta, order, taken, scan_of(s)->xs_snapshot);
        }
        walk->walked += taken;
        walk->ended |= taken < count;
        if (taken < count) break;
    }
}

void begin_first_walk(const ScanSearch& search, ScanState* s, Size wanted,
                      const CommonRadius* common, FirstWalk* walk) {
    Candidate* room = reserve_candidates(s, wanted);
    std::construct_at(walk,
                      FirstWalk{CandidateSelection(room, wanted, s->group.floor, begin_walk(s)),
                                {scan_of(s)->indexRelation, s, &walk->selection},
                                {},
                                room,
                                0,
                                true});
    if (s->group.begin > 0 || !(s->goal.effort.threshold > 0)) {
        walk_group(scan_of(s), s, &walk->gather, nullptr);
        return;
    }
    const Size radius = limit_of(search) + s->asked.passed_over;
    const ListPlan plan =
        list_plan(s->goal.effort, std::clamp<Size>(radius, 1, wanted), code_shift(s));
    // Candidates that a later walk finds again are kept for it.
    const Size least = plan.k + s->served.count;
    walk->query = {ListWalk(plan), &effort_of(search), common, 0, least, least};
    walk->gather.walk = &walk->query;
    walk->ended = false;
    s->seen = {};
}

// The distance by code of the k-th nearest candidate of all walks.
double kth_of_walks(const FirstWalk* walks, int count, Size k) {
    Size room = 0;
    for (int i = 0; i < count; ++i) room += walks[i].selection.count();
    if (room < k) return std::numeric_limits<double>::infinity();
    auto* distances = static_cast<double*>(palloc(room * sizeof(double)));
    Size at = 0;
    for (int i = 0; i < count; ++i)
        for (Size c = 0; c < walks[i].selection.count(); ++c)
            distances[at++] = walks[i].items[c].distance;
    std::nth_element(distances, distances + k - 1, distances + room);
    const double kth = distances[k - 1];
    pfree(distances);
    return kth;
}

// Each part takes its lists wave by wave, by a radius that all have: that of the nearest candidates
// of all, renewed after a wave of each.
void walk_by_queries(const ScanSearch& search, FirstWalk* walks, int count, CommonRadius* common) {
    for (uint32 end = search.count > 1 ? 1 : max_lists;; end = wave_end(end)) {
        bool any = false;
        for (int i = 0; i < count; ++i) {
            if (walks[i].ended) continue;
            in_memory_of(walks[i].gather.scan, [&] { walk_up_to(&walks[i], end); });
            any |= !walks[i].ended;
        }
        if (!any) return;
        common->kth = kth_of_walks(walks, count, search.limit);
    }
}

// Drops candidates beyond the limit. Later parts would be farther still, so the group ends there.
void cut_part(ScanState* s, const Candidate* candidates, Size* count) {
    const double limit = code_limit(s->bound);
    while (*count > 0 && candidates[*count - 1].distance > limit) {
        --*count;
        s->group.floor = floor_at(limit);
        s->walk.stage = GroupStage::ended;
    }
}

// The candidates of a walk, nearest by code first. Lists that a query took become the first group.
RankedPart end_first_walk(FirstWalk* walk) {
    ScanState* s = walk->gather.scan;
    if (walk->gather.walk) {
        s->group.begin = 0;
        s->group.end = s->report.probes = walk->walked;
    }
    const CandidateSelection::Result result = walk->selection.finish();
    s->group.floor = result.floor;
    s->walk.stage = GroupStage::walked;
    if (result.complete) end_walk(s);
    RankedPart part{s, walk->items, result.count, result.kept_until, true, 0};
    if (s->bound.given) cut_part(s, part.candidates, &part.count);
    return part;
}

// --- further candidates

// A part of the group's candidates, nearest first.
using Part = CandidateQueue::Part;

// The next candidates of the group, from the source of its stage; empty at the end of the group.
Part next_part(IndexScanDesc scan, ScanState* s, Size wanted) {
    if (s->walk.stage == GroupStage::first) order_candidates(scan, s);
    if (s->walk.stage == GroupStage::walked) hold_candidates(scan, s);
    if (s->walk.stage == GroupStage::held) {
        const Part part = s->walk.held.take(wanted);
        if (part.count > 0) return part;
        if (s->walk.held_all)
            end_walk(s);
        else
            order_candidates(scan, s);
    }
    if (s->walk.stage == GroupStage::ordered) {
        const Size most = std::min(wanted, most_candidates());
        Candidate* room = reserve_candidates(s, most);
        const Part part{room, take_candidates(s->walk.ordered, room, most)};
        if (part.count > 0) return part;
        close_candidate_order(s->walk.ordered);
        s->walk.ordered = nullptr;
        end_walk(s);
    }
    return {s->candidates.items, 0};
}

// Ranks as many candidates as the search takes; the next walks resume after them.
void rank_parts(const ScanSearch& search, RankedPart* parts, int count, bool goes_on) {
    auto* by_code =
        static_cast<Candidate**>(palloc(Max(count, 1) * static_cast<Size>(sizeof(Candidate*))));
    for (int i = 0; i < count; ++i) {
        by_code[i] =
            static_cast<Candidate*>(palloc(Max(parts[i].count, Size{1}) * sizeof(Candidate)));
        std::copy_n(parts[i].candidates, parts[i].count, by_code[i]);
    }
    rank_until_sure(search, parts, count, goes_on);
    for (int i = 0; i < count; ++i) {
        ScanState* s = parts[i].s;
        const Size ranked = parts[i].ranked;
        if (ranked < parts[i].count) {
            s->group.floor = ranked > 0 ? by_code[i][ranked - 1] : no_floor;
            s->walk.stage = GroupStage::walked;
        }
        // A later search skips them.
        in_memory_of(s, [&] { remember(s, sorted_ids(by_code[i], ranked), ranked); });
        pfree(by_code[i]);
    }
    pfree(by_code);
}

bool worth_going_on(Relation index, ScanState* s) {
    if (!s->bound.given) return true;
    const float nearest =
        nearest_behind(index, s->meta, &s->lists, s->group.end, greatest_term(s->bound));
    return worth_going_on(&s->bound, nearest);
}

// Rows ranked since may have raised the limit at which the scan left a group. The limit converges
// within a few returns.
bool worth_returning(const ScanState* s, const Candidate& floor, uint32 returns) {
    constexpr uint32 max_returns = 3;
    return s->bound.given && returns < max_returns && limit_has_risen(s->bound, floor.distance);
}

void begin_group(ScanState* s, const ListGroup& group, GroupStage stage) {
    s->group = group;
    s->walk.stage = stage;
}

// Called when no further lists are worth reading: returns to an ended group that the limit now
// reaches beyond, or ends the scan of the lists.
void return_to_group(ScanState* s) {
    for (uint32 i = 0; i < s->ended.count; ++i) {
        ListGroup group = s->ended.groups[i];
        if (!worth_returning(s, group.floor, group.returns)) continue;
        ++group.returns;
        s->ended.current = i;
        begin_group(s, group, GroupStage::walked);
        return;
    }
    s->group.begin = s->group.end;
}

void end_group(Relation index, ScanState* s) {
    if (s->walk.ordered) close_candidate_order(s->walk.ordered);
    s->walk.ordered = nullptr;
    if (worth_returning(s, s->group.floor, s->group.returns)) {
        ++s->group.returns;
        s->walk.stage = GroupStage::walked;
        return;
    }
    const bool returned = s->ended.current < s->ended.count;
    s->ended.groups[s->ended.current] = s->group;
    if (!returned) {
        s->ended.current = ++s->ended.count;
        const uint32 size = s->group.end - s->group.begin;
        const uint32 lists = worth_going_on(index, s) ? bounded_probes(s->meta.lists, s->meta) : 0;
        const uint32 end = std::min(lists, s->group.end + 2 * size);
        if (end > s->group.end) {
            begin_group(s, {s->group.end, end, no_floor, 0}, GroupStage::first);
            order_group(index, s);
            return;
        }
    }
    return_to_group(s);
}

}  // namespace

uint64* sorted_ids(const Candidate* candidates, Size count) {
    auto* ids = static_cast<uint64*>(palloc(Max(count, Size{1}) * sizeof(uint64)));
    for (Size i = 0; i < count; ++i) ids[i] = candidates[i].id;
    std::sort(ids, ids + count);
    return ids;
}

void remember(ScanState* s, uint64* ranked, Size ranked_count) {
    const Size most = s->served.count + ranked_count;
    auto* tids = static_cast<uint64*>(palloc(Max(most, Size{1}) * sizeof(uint64)));
    // A walk that begins again finds candidates that are remembered.
    const uint64* end = std::set_union(s->served.tids, s->served.tids + s->served.count, ranked,
                                       ranked + ranked_count, tids);
    if (s->served.tids) pfree(s->served.tids);
    pfree(ranked);
    s->served.tids = tids;
    s->served.count = static_cast<Size>(end - tids);
}

void end_group_at_limit(Relation index, ScanState* s) {
    clear_vector_cache(s->cache);
    rank_lists(index, s);
    s->group.floor = floor_at(code_limit(s->bound));
    end_group(index, s);
}

void begin_lists_again(ScanState* s) {
    begin_group(s, {0, s->group.end, no_floor, 0}, GroupStage::first);
    s->served.repeated = s->served.count;
    s->service = {};
    s->service.done = true;
}

uint32 bounded_probes(uint32 probes, const MetaPage& meta) {
    probes = std::min(probes, meta.lists);
    return settings.max_probes > 0 ? std::min<uint32>(probes, settings.max_probes) : probes;
}

void aim_at(ScanState* s, uint32 rows) {
    RoundGoal& goal = s->goal;
    goal.limit = rows;
    goal.effort = choose_effort(s->meta, rows, checks_conditions(s));
    const Size least = Size{goal.effort.candidates} + s->asked.passed_over;
    // A query decides on its lists only if its candidates fit into memory beside those ranked
    // before, which it finds again. Otherwise groups of lists are sorted. A bound on the distance
    // ends a scan by a rule of its own.
    const Size room = most_candidates() - std::min(most_candidates(), s->served.count);
    const bool fits = goal.effort.by_error ? 2 * room > most_candidates() : least <= room;
    if (s->bound.given || !fits) goal.effort.threshold = 0;
    scale_thresholds(&goal.effort, goal.growth);
    goal.candidates = kept_candidates(goal.effort) + s->asked.passed_over;
    if (goal.effort.threshold > 0)
        goal.candidates = std::min(goal.candidates, room);
    else
        goal.candidates = std::clamp(goal.candidates, least, std::max(least, most_candidates()));
    double lists = goal.effort.probes;
    if (!(goal.effort.threshold > 0) && !goal.probes_given)
        lists = std::max<double>(lists, lists_for_all(s->meta, rows, checks_conditions(s)));
    s->group = {0, bounded_probes(static_cast<uint32>(lists), s->meta), no_floor, 0};
    s->walk.stage = GroupStage::first;
    s->report.probes = std::max(s->report.probes, s->group.end);
}

void expect_recall(ScanState* s) {
    ScanReport& report = s->report;
    report.score = report.expected_recall = 0;
    if (s->meta.lists == 0) {
        report.expected_recall = 1;  // all rows were visited
        return;
    }
    // A bound ends a search by distances, however many rows it wants.
    if (s->bound.given) return;
    const auto growth = static_cast<float>(s->goal.growth);
    Effort effort = s->goal.effort;
    effort.probes = report.probes;
    if (report.by_service && effort.threshold > 0)
        effort.threshold /= growth;
    else
        effort.threshold = report.score = report.by_service ? 0 : s->seen.score / growth;
    ExpectedRecall expected;
    if (expected_recall(s->meta, s->goal.limit, effort, &expected))
        report.expected_recall = static_cast<float>(expected.recall);
}

uint32 longer_limit(Size limit, double rows) {
    // The share that passes, of few rows, is a guess: a step goes no further than the longest. The
    // least bounds the number of steps.
    constexpr double least_step = 2;
    constexpr double longest_step = 8;
    const auto before = static_cast<double>(limit);
    const double next = std::clamp(rows, least_step * before, longest_step * before);
    return static_cast<uint32>(std::min<double>(next, most_wanted_rows));
}

bool search_for_more(Relation index, ScanState* s, double rows) {
    if (!(s->goal.effort.threshold > 0) || s->walk.stage == GroupStage::ordered ||
        s->group.begin >= s->group.end)
        return false;
    aim_at(s, longer_limit(s->goal.limit, rows));
    s->ended.count = s->ended.current = 0;
    s->served.repeated = s->served.count;
    s->service.resumes = false;
    s->service.most_of_first = 0;
    // After an answer of the service the lists have no order yet: the next walk ranks them.
    if (s->lists.ranked) order_group(index, s);
    return true;
}

namespace {

// How many candidates the round takes of the lists.
Size begin_gathering(ScanState* s) {
    // The service may have ranked rows of this round. Cached vectors must stay last in the scratch
    // memory, which grows below.
    clear_vector_cache(s->cache);
    rank_lists(scan_of(s)->indexRelation, s);
    decide_to_refine(s);
    const Size left = s->goal.candidates + s->served.repeated;
    s->served.repeated = 0;
    s->service.left_more = false;
    return left;
}

// Takes candidates after the first walk of a group.
void go_on_in_group(const ScanSearch& search, ScanState* s, Size left) {
    const IndexScanDesc scan = scan_of(s);
    while (left > 0) {
        // An unsure round mostly has to rank only a few more.
        const bool unsure = s->round.unsure;
        Part part =
            next_part(scan, s, unsure ? std::min<Size>(left, s->goal.effort.candidates) : left);
        s->round.unsure = false;
        if (s->bound.given) cut_part(s, part.items, &part.count);
        if (part.count == 0) break;
        left -= std::min(left, part.count);
        if (s->walk.stage == GroupStage::ordered) {
            // A CandidateOrder may hold several parts, each bounded by memory. Its candidates are
            // too many to remember, so no later search may begin anew and find them again.
            rank_or_refine(scan, s, part.items, part.count);
            s->goal.effort.threshold = 0;
        } else if (unsure) {
            RankedPart ranked{s,    part.items, part.count, part.items[part.count - 1].distance,
                              true, 0};
            rank_parts(search, &ranked, 1, true);
            if (!s->round.unsure) break;
        } else {
            uint64* ids = sorted_ids(part.items, part.count);
            rank_or_refine(scan, s, part.items, part.count);
            remember(s, ids, part.count);
            break;
        }
    }
}

}  // namespace

void gather_from_lists(const ScanSearch& search, ScanState* const* parts, int count) {
    if (count == 0) return;
    const auto room = static_cast<Size>(count);
    auto* walks = static_cast<FirstWalk*>(palloc(room * sizeof(FirstWalk)));
    auto* found = static_cast<RankedPart*>(palloc(room * sizeof(RankedPart)));
    CommonRadius common;
    int walked = 0;
    for (int i = 0; i < count; ++i)
        in_memory_of(parts[i], [&] {
            const Size left = begin_gathering(parts[i]);
            if (parts[i]->walk.stage == GroupStage::first && left <= most_candidates())
                begin_first_walk(search, parts[i], left, search.count > 1 ? &common : nullptr,
                                 &walks[walked++]);
            else
                go_on_in_group(search, parts[i], left);
        });
    walk_by_queries(search, walks, walked, &common);
    for (int i = 0; i < walked; ++i) found[i] = end_first_walk(&walks[i]);
    // In later rounds, rows of the other parts are known.
    if (walked > 0)
        rank_parts(search, found, walked, search.count > 1 && parts[0]->report.rounds > 0);
    for (int i = 0; i < count; ++i) {
        ScanState* s = parts[i];
        // Rows just ranked may have lowered the limit below the rest of this group.
        if (s->walk.stage == GroupStage::walked && s->group.floor.distance > code_limit(s->bound))
            s->walk.stage = GroupStage::ended;
        if (s->walk.stage == GroupStage::ended)
            in_memory_of(s, [&] { end_group(scan_of(s)->indexRelation, s); });
    }
    pfree(found);
    pfree(walks);
}

}  // namespace pgwarp
