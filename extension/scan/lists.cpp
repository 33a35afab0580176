// Candidates of a scan from the lists: the lists nearest to the query, in groups, and their entries
// by distance by code.
//
// Candidates are ordered by (distance by code, TID), so one such pair, the floor, says where a
// round resumes in a group. A scan walks a group up to three times:
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
#include <new>

#include "extension/index/effort.h"
#include "extension/index/lists.h"
#include "extension/index/page.h"
#include "extension/scan/gather.h"
#include "extension/scan/state.h"
#include "extension/scan/tables.h"
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
    if (!s->lists.ranks) return;
    for (uint32 i = s->group.begin; i < s->group.end; ++i) s->lists.ranks[s->lists.order[i]] = i;
}

// Orders the first group, with ranks if the scan widens.
void begin_ranks(Relation index, ScanState* s) {
    if (widens(s) && !s->lists.ranks) {
        // Cached vectors must stay last in the scratch memory.
        clear_vector_cache(s->cache);
        s->lists.ranks = scratch_array<uint32>(s->scratch, s->meta.lists);
    }
    order_group(index, s);
    s->lists.ranked = true;
}

void rank_lists(Relation index, ScanState* s) {
    if (s->lists.ranked) return;
    read_tables(index, s);
    begin_ranks(index, s);
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

// Adds lists to the group up to the `end` nearest, and walks them.
void extend_group(IndexScanDesc scan, ScanState* s, GatherState* gather, uint32 end) {
    const uint32 begin = s->group.begin;
    s->group.begin = s->group.end;
    s->group.end = end;
    order_group(scan->indexRelation, s);
    walk_group(scan, s, gather, nullptr);
    s->group.begin = begin;
}

// Whether a query without conditions would have taken the last list of the group, too, for as many
// rows as there are up to the k-th that passes, at this distance (kernels/list_effort.h). Where
// most rows pass, that tells better than the counts whether a query is far from all rows.
bool would_take_last(IndexScanDesc scan, const ScanState* s, Size k, double distance) {
    constexpr double most_pass = 0.2;
    const double share = s->widening.passing / std::max(s->widening.entries, 1.0);
    const double of_filter =
        s->goal.filtered > 0 ? static_cast<double>(s->goal.filtered) / s->goal.limit : 1;
    if (share * of_filter < most_pass || s->group.end == 0) return false;
    const double nearest = std::ceil(static_cast<double>(k) / share);
    const Effort effort = choose_effort(s->meta, static_cast<uint32>(nearest), ByQuery::yes);
    if (!(effort.threshold > 0)) return false;
    const double growth = list_growth(scan->indexRelation, s->meta);
    const auto term_of = [s](uint32 place) { return s->lists.terms[s->lists.order[place]]; };
    return list_score(term_of(s->group.end - 1), term_of(0), static_cast<float>(distance),
                      static_cast<float>(s->widening.entries)) <=
           effort.threshold * std::sqrt(growth);
}

// Walks the first group, and adds lists to it until the scan needs no more for the candidates that
// it wants (widening.h).
void walk_and_widen(IndexScanDesc scan, ScanState* s, GatherState* gather, Size wanted) {
    s->widening.samples_entries = true;
    walk_group(scan, s, gather, nullptr);
    const uint32 lists = bounded_probes(s->meta.lists, s->meta);
    const Size k = std::min(Size{s->goal.limit}, wanted);
    // If as few entries pass everywhere as here, the k nearest that pass are among this many.
    const double share = std::max(s->widening.passing, 0.5) / std::max(s->widening.entries, 1.0);
    const double nearest = static_cast<double>(k) / share;
    const double half = std::max(lists_for(s->meta, nearest), expected_lists(s->meta, nearest)) / 2;
    const uint32 start = settings.target_recall >= 1
                             ? lists
                             : static_cast<uint32>(std::min<double>(lists, std::ceil(half)));
    if (start > s->group.end) extend_group(scan, s, gather, start);
    while (s->group.end < lists) {
        forget_beyond(&s->widening, gather->selection->bound());
        const double distance = gather->selection->distance_of(k);
        if (!std::isinf(distance) &&
            covers(s->widening, s->group.end, distance, 1 - settings.target_recall) &&
            !would_take_last(scan, s, k, distance))
            break;
        extend_group(scan, s, gather, std::min(lists, 2 * s->group.end));
    }
    s->widening.samples_entries = false;
    s->report.probes = std::max(s->report.probes, s->group.end);
}

// Drops candidates that are too far to be ranked, whatever the lists to come have: the fewer are
// kept, the faster are the lists scanned. Now and then, as it takes time.
void narrow_selection(const ScanState* s, QueryEffort* effort, CandidateSelection* selection) {
    if (!(s->goal.margin > 0) || selection->count() < 2 * effort->narrowed_at) return;
    // The radius may be that of a later candidate.
    if (effort->limit.wider_k > 0 && !effort->limit.has_radius) return;
    const double kth = selection->distance_of(effort->limit.k);
    selection->narrow(greatest_limit(kth, s->goal.margin), effort->least);
    effort->narrowed_at = std::max(effort->narrowed_at, selection->count());
}

// Whether the query takes the next list, too (kernels/list_effort.h).
bool takes_list(void* state, uint32 place) {
    const auto* gather = static_cast<GatherState*>(state);
    const ScanState* s = gather->scan;
    QueryEffort* effort = gather->effort;
    const uint32 list = s->lists.order[effort->first_place + place];
    narrow_selection(s, effort, gather->selection);
    // The curve was measured with as many, also where other partitions tell the radius.
    if (s->widening.entries < effort->limit.first_entries) return true;
    if (effort->waits_for_radius) return false;
    const uint32 walked = effort->first_place + place;
    return effort->limit.takes(s->lists.terms[list], walked, s->widening.entries,
                               *gather->selection);
}

// Walks lists from the `walked`-th on, as many as the query takes. Those up to the end of the group
// are in order.
void walk_while_taken(IndexScanDesc scan, ScanState* s, GatherState* gather, uint32* walked) {
    const uint32 lists = bounded_probes(s->meta.lists, s->meta);
    while (true) {
        if (*walked == s->group.end) {
            if (*walked >= lists) break;
            s->group.begin = *walked;
            s->group.end = std::min(lists, 2 * s->group.end);
            order_group(scan->indexRelation, s);
        }
        const uint32* order = s->lists.order + *walked;
        const uint32 count = s->group.end - *walked;
        // `first_place` is that of the first of these lists, which were not asked for yet.
        gather->effort->first_place = *walked;
        if (*walked > 0 && !takes_list(gather, 0)) break;
        const uint32 taken =
            walk_lists(scan->indexRelation, s->meta, order, count,
                       {gather_page, gather, nullptr, nullptr, &gather->coming, takes_list});
        check_snapshot(scan->indexRelation, s->meta, order, taken, scan->xs_snapshot);
        *walked += taken;
        if (taken < count) break;
    }
}

// The lists that were walked become the first group.
void end_first_group(ScanState* s, uint32 walked) {
    s->group.begin = 0;
    s->group.end = walked;
    s->report.probes = walked;
}

// Walks as many lists as the query takes: these become the first group.
// At least `least` of the candidates are ranked.
void walk_by_query(IndexScanDesc scan, ScanState* s, GatherState* gather, Size wanted, Size least) {
    const auto k =
        static_cast<uint32>(std::min(Size{s->goal.limit} + s->asked.passed_over, wanted));
    least = std::max<Size>(least, k);
    QueryEffort effort{{s->goal.threshold, k, entries_for_radius(s, k), s->goal.first_lists,
                        static_cast<uint32>(std::min<Size>(s->goal.wider_k, wanted))},
                       0,
                       least,
                       least};
    effort.limit.nearest = s->lists.terms[s->lists.order[0]];
    const double radius = radius_of_group(s);
    if (radius > 0) {
        effort.limit.has_radius = true;
        effort.limit.radius = static_cast<float>(radius);
    }
    gather->effort = &effort;
    uint32 walked = 0;
    s->widening.entries = 0;
    walk_while_taken(scan, s, gather, &walked);
    gather->effort = nullptr;
    end_first_group(s, walked);
}

Part first_part(IndexScanDesc scan, ScanState* s, Size wanted) {
    const Size least = wanted;
    if (s->goal.margin > 0 && s->report.rounds == 0)
        wanted =
            std::min(most_ranked_of(least, s->refined.used, s->goal.wider_k), most_candidates());
    Candidate* room = reserve_candidates(s, wanted);
    CandidateSelection selection(room, wanted, s->group.floor, begin_walk(s));
    GatherState gather{scan->indexRelation, s, &selection};
    if (s->group.begin == 0 && widens(s))
        walk_and_widen(scan, s, &gather, wanted);
    else if (s->group.begin == 0 && s->goal.threshold > 0)
        walk_by_query(scan, s, &gather, wanted, least);
    else
        walk_group(scan, s, &gather, nullptr);
    const CandidateSelection::Result result = selection.finish();
    s->group.floor = result.floor;
    s->walk.stage = GroupStage::walked;
    const Size count = wanted > least ? worth_ranking(s, room, result.count, least) : result.count;
    if (count < result.count)
        s->group.floor = room[count - 1];
    else if (result.complete)
        end_walk(s);
    return {room, count};
}

// Widens a group whose candidates are more than memory holds, before any of them are kept.
void widen_first(IndexScanDesc scan, ScanState* s) {
    const Size most = most_candidates();
    CandidateSelection selection(reserve_candidates(s, most), most, s->group.floor, begin_walk(s));
    GatherState gather{scan->indexRelation, s, &selection};
    walk_and_widen(scan, s, &gather, most);
}

// The next candidates of the group, from the source of its stage; empty at the end of the group.
Part next_part(IndexScanDesc scan, ScanState* s, Size wanted) {
    if (s->walk.stage == GroupStage::first) {
        if (wanted <= most_candidates()) return first_part(scan, s, wanted);
        if (s->group.begin == 0 && widens(s)) widen_first(scan, s);
        order_candidates(scan, s);
    }
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

// Ranks as many of the first walk's candidates as it takes; the next round resumes after them.
void rank_first_part(IndexScanDesc scan, ScanState* s, const Part& part) {
    auto* by_code = static_cast<Candidate*>(palloc(Max(part.count, Size{1}) * sizeof(Candidate)));
    std::copy_n(part.items, part.count, by_code);
    const Size ranked = rank_until_sure(scan, s, part.items, part.count);
    if (ranked < part.count) {
        s->group.floor = by_code[ranked - 1];
        s->walk.stage = GroupStage::walked;
    }
    pfree(by_code);
}

// Drops candidates beyond the limit. Later parts would be farther still, so the group ends there.
void cut_part(ScanState* s, Part* part) {
    const double limit = code_limit(s->bound);
    while (part->count > 0 && part->items[part->count - 1].distance > limit) {
        --part->count;
        s->group.floor = floor_at(limit);
        s->walk.stage = GroupStage::ended;
    }
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

// Whether the scan may give its first group more lists, for a filter, and walk it again. Later
// groups follow by themselves, and candidates beyond memory are not remembered.
bool may_begin_again(const ScanState* s) {
    return s->goal.filtered > 0 && s->ended.count == 0 && s->group.begin == 0 && !s->bound.given &&
           !s->goal.probes_given && s->walk.stage != GroupStage::ordered;
}

// Begins a scan with a filter as aim_by_filter() would go on, if the share that passes is as
// planned: so most scans walk their lists once.
void aim_by_plan(ScanState* s) {
    // Plans err. The first round shows how much, and others go further.
    constexpr double trusted = 1.0 / 16;
    const double share = std::max(static_cast<double>(s->goal.filtered) / s->goal.planned, trusted);
    if (share >= nearly_all || s->conditions.count > 0 || s->bound.given || s->goal.probes_given ||
        !has_curve(s->meta))
        return;
    const double nearest = s->goal.filtered / share;
    s->goal.aims = true;
    s->goal.threshold = s->goal.margin = 0;
    s->goal.limit = static_cast<uint32>(std::ceil(nearest));
    s->goal.least_rows = static_cast<Size>(ranked_for_filter(s->meta, s->goal.filtered, share));
    // As many pass by chance, nearly always.
    constexpr double margin = 1.5;
    const auto candidates =
        static_cast<Size>(margin * static_cast<double>(s->goal.least_rows) / share);
    s->goal.candidates = std::max(s->goal.candidates, std::min(candidates, most_candidates()));
    const auto lists = static_cast<uint32>(lists_for_filter(s->meta, nearest));
    s->group.end = std::max(s->group.end, bounded_probes(lists, s->meta));
}

}  // namespace

namespace {

// Adds the lists up to this term to those that are in order.
void order_within(ScanState* s, float term) {
    const float* terms = s->lists.terms;
    uint32* begin = s->lists.order + s->group.end;
    uint32* end = std::partition(begin, s->lists.order + s->lists.compared,
                                 [terms, term](uint32 list) { return terms[list] <= term; });
    std::sort(begin, end, [terms](uint32 a, uint32 b) {
        return terms[a] < terms[b] || (terms[a] == terms[b] && a < b);
    });
    s->group.end = std::min(static_cast<uint32>(end - s->lists.order),
                            std::max(bounded_probes(s->meta.lists, s->meta), s->group.end));
}

}  // namespace

SteppedWalk* begin_steps(IndexScanDesc scan, ScanState* s, Size wanted) {
    // Few are in order at first: most partitions take few.
    constexpr uint32 first_lists = 4;
    s->group.begin = 0;
    s->group.end = std::min(first_lists, bounded_probes(s->meta.lists, s->meta));
    begin_ranks(scan->indexRelation, s);
    decide_to_refine(s);
    s->widening.entries = 0;
    Candidate* room = reserve_candidates(s, wanted);
    auto* walk = static_cast<SteppedWalk*>(palloc(sizeof(SteppedWalk)));
    new (walk) SteppedWalk{CandidateSelection(room, wanted, no_floor, begin_walk(s)),
                           {scan->indexRelation, s, nullptr},
                           {},
                           room,
                           0};
    walk->gather.selection = &walk->selection;
    walk->gather.effort = &walk->effort;
    walk->effort.limit.nearest = s->lists.terms[s->lists.order[0]];
    // The caller narrows the selection.
    walk->effort.narrowed_at = wanted;
    return walk;
}

void walk_step(IndexScanDesc scan, ScanState* s, SteppedWalk* walk) {
    // With a radius, the query takes no list whose term is greater, as the score rises with the
    // entries: only lists up to there are put into their order.
    const ListLimit& limit = walk->effort.limit;
    if (!walk->effort.waits_for_radius && limit.has_radius && limit.first_lists == 0 &&
        s->meta.parents == 0)
        order_within(s, greatest_distance(limit.threshold, limit.nearest, limit.radius,
                                          static_cast<float>(s->widening.entries)));
    walk_while_taken(scan, s, &walk->gather, &walk->walked);
}

Size end_steps(ScanState* s, SteppedWalk* walk) {
    end_first_group(s, walk->walked);
    const CandidateSelection::Result result = walk->selection.finish();
    s->group.floor = result.floor;
    s->walk.stage = GroupStage::walked;
    if (result.complete) end_walk(s);
    return result.count;
}

void end_first_part(IndexScanDesc scan, ScanState* s, Size ranked, Size count,
                    const Candidate& last) {
    if (ranked < count) {
        s->group.floor = ranked > 0 ? last : no_floor;
        s->walk.stage = GroupStage::walked;
    }
    if (s->walk.stage == GroupStage::ended) end_group(scan->indexRelation, s);
}

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
    reset_widening(&s->widening);
    s->service = {};
    s->service.done = true;
}

bool widens(const ScanState* s) {
    return (s->conditions.count > 0 || s->goal.aims) && !s->goal.probes_given;
}

uint32 entries_for_radius(const ScanState* s, uint32 k) {
    return static_cast<uint32>(s->goal.growth * first_entries(k, s->meta.rows_at_build));
}

uint32 bounded_probes(uint32 probes, const MetaPage& meta) {
    probes = std::min(probes, meta.lists);
    return settings.max_probes > 0 ? std::min<uint32>(probes, settings.max_probes) : probes;
}

void aim_by_filter(Relation index, ScanState* s) {
    const RowFilter& filter = row_filter(s->reader);
    const double share = (filter.passed + 0.5) / (filter.seen + 1);
    // The first round has ranked as many as a search without a filter: what is missing are rows
    // that are not visible.
    if (share >= nearly_all && s->round.added >= s->goal.filtered) {
        s->goal.least_rows = s->goal.filtered;
        return;
    }
    s->goal.least_rows = static_cast<Size>(ranked_for_filter(s->meta, s->goal.filtered, share));
    // A share of few rows is an estimate: a step goes no further than this.
    constexpr double longest_step = 8;
    // The rows that pass are among this many nearest rows of those that pass the conditions. The
    // goal grows even where it asks for no more lists, so that the next step goes further.
    constexpr double most_rows = 1 << 25;
    const double ranked = std::max(static_cast<double>(s->progress.ranked), 64.0);
    const double reach = longest_step * std::max<double>(s->goal.limit, ranked);
    const double nearest = std::min({s->goal.filtered / share, reach, most_rows});
    const Widening& walked = s->widening;
    const double passing =
        s->conditions.count > 0 ? std::max(walked.passing, 0.5) / std::max(walked.entries, 1.0) : 1;
    const uint32 lists =
        bounded_probes(static_cast<uint32>(lists_for_filter(s->meta, nearest / passing)), s->meta);
    const bool enough = s->round.added >= s->goal.least_rows;
    // The share is an estimate, and so is the number of lists: a few more are not worth a walk.
    // Without a curve, it says nothing.
    constexpr double step = 1.25;
    const bool more_lists =
        lists > (s->goal.aims ? step : 1) * s->group.end && (!enough || has_curve(s->meta));
    const bool again = may_begin_again(s) && (more_lists || (!s->goal.aims && !enough));
    if (enough && !again) return;
    const double missing = enough ? 0 : static_cast<double>(s->goal.least_rows - s->round.added);
    s->goal.candidates =
        static_cast<Size>(std::ceil(std::clamp(missing / share, 64.0, longest_step * ranked)));
    if (may_begin_again(s)) s->goal.limit = static_cast<uint32>(std::ceil(nearest));
    if (!again) return;
    // Enough rows, but of too few lists: the next round is needed even so.
    if (enough) s->goal.least_rows = s->round.added + 1;
    s->goal.aims = true;
    s->group.end = std::max(lists, s->group.end);
    s->group.floor = no_floor;
    s->walk.stage = GroupStage::first;
    reset_widening(&s->widening);
    s->served.repeated = s->served.count;
    s->service.resumes = false;
    // After an answer of the service the lists have no order yet: the next walk ranks them.
    if (s->lists.ranked) begin_ranks(index, s);
}

void aim_by_codes(ScanState* s) {
    constexpr int64 most_ranked = 1 << 14;
    if (s->codes.too_few) s->goal.least_rows = s->codes.least_rows;
    const bool more = s->service.resumes || s->service.left_more ||
                      s->walk.stage == GroupStage::walked || s->walk.stage == GroupStage::held;
    if (!more || settings.candidates > 0 || s->bound.given || s->progress.ranked >= most_ranked)
        return;
    // The curve has fewer than this many, mostly. Once it does not hold, the scan goes on until
    // there are next to none.
    constexpr double suspicious = 1.0 / 4;
    constexpr double next_to_none = 1.0 / 16;
    if (late_share(&s->codes, s->goal.limit) <= (s->codes.too_few ? next_to_none : suspicious))
        return;
    if (!s->codes.too_few) s->codes.least_rows = s->goal.least_rows;
    s->codes.too_few = true;
    s->goal.candidates = 3 * static_cast<Size>(s->progress.ranked);
    s->goal.least_rows = std::max(s->codes.least_rows, s->round.added + 1);
}

void gather_from_lists(IndexScanDesc scan, ScanState* s) {
    Relation index = scan->indexRelation;
    // The service may have ranked rows of this round. Cached vectors must stay last in the scratch
    // memory, which grows below.
    clear_vector_cache(s->cache);
    if (s->goal.filtered > 0 && s->report.rounds == 0 && !s->report.by_service && !s->goal.aims)
        aim_by_plan(s);
    rank_lists(index, s);
    decide_to_refine(s);
    // A group that has ended, and that aim_by_filter() did not begin again.
    if (s->walk.stage == GroupStage::ended) {
        end_group(index, s);
        if (s->group.begin >= s->group.end) return;
    }
    s->report.probes = std::max(s->report.probes, s->group.end);
    Size left = s->goal.candidates + s->served.repeated;
    s->served.repeated = 0;
    s->service.left_more = false;
    // Only a CandidateOrder may hold more than one part: its parts are bounded by memory.
    do {
        const bool walks_first = s->walk.stage == GroupStage::first && left <= most_candidates();
        Part part = next_part(scan, s, left);
        if (s->bound.given) cut_part(s, &part);
        left -= std::min(left, part.count);
        const Size taken = part.count;
        uint64* ids = may_begin_again(s) ? sorted_ids(part.items, taken) : nullptr;
        if (s->refined.used && refine_candidates(scan, s, part.items, part.count)) continue;
        if (walks_first && may_rank_fewer(s))
            rank_first_part(scan, s, part);
        else
            rank_candidates(scan, s, part.items, part.count);
        if (ids) remember(s, ids, taken);
    } while (left > 0 && s->walk.stage == GroupStage::ordered);
    // Rows just ranked may have lowered the limit below the rest of this group.
    if (s->walk.stage == GroupStage::walked && s->group.floor.distance > code_limit(s->bound))
        s->walk.stage = GroupStage::ended;
    // A filter may ask for more lists in the first group, which ends in the next round otherwise.
    const bool waits = may_begin_again(s) && s->group.end < bounded_probes(s->meta.lists, s->meta);
    if (s->walk.stage == GroupStage::ended && !waits) end_group(index, s);
}

}  // namespace pgwarp
