// Reads the rows of a scan's candidates from the table, and ranks them by exact distance.

#include <algorithm>
#include <cmath>
#include <limits>

#include "extension/index/effort.h"
#include "extension/index/lists.h"
#include "extension/index/model.h"
#include "extension/scan/merged_order.h"
#include "extension/scan/state.h"
#include "extension/scan/visit.h"
#include "extension/index/tid.h"
#include "extension/settings.h"

extern "C" {
#include "miscadmin.h"
}

namespace pgwarp {

namespace {

Size most_rows() {
    return most_candidates();
}

void reserve_rows(ScanState* s, Size more) {
    const Size bytes = (s->round.count + more) * sizeof(RankedRow);
    if (bytes <= s->round.bytes) return;
    s->round.rows = static_cast<RankedRow*>(
        scratch_grow(s->scratch, s->round.rows, s->round.count * sizeof(RankedRow), bytes));
    s->round.bytes = bytes;
}

// Drops candidates that the service or the pending list gave before. `candidates` are sorted by id.
Size drop_known(IndexScanDesc scan, const ScanState* s, Candidate* candidates, Size count) {
    if (s->served.count > 0)
        count = static_cast<Size>(
            std::remove_if(candidates, candidates + count,
                           [s](const Candidate& candidate) {
                               return std::binary_search(
                                   s->served.tids, s->served.tids + s->served.count, candidate.id);
                           }) -
            candidates);
    return drop_moved(scan->indexRelation, s->meta, s->pending.entries, candidates, count,
                      &Candidate::id);
}

}  // namespace

Size scan_memory() {
    return static_cast<Size>(work_mem) * 1024;
}

Size most_candidates() {
    return std::clamp<Size>(scan_memory() / 96, 1024, 4000000);
}

void expect_rows(ScanState* s, Size more) {
    const bool fits = !s->round.spilled && s->round.count + more <= most_rows();
    if (fits && (s->round.count + more) * sizeof(RankedRow) <= s->round.bytes) return;
    // Cached vectors must stay last in the scratch memory, so drop them before it grows.
    clear_vector_cache(s->cache);
    if (fits) {
        reserve_rows(s, more);
        return;
    }
    if (!s->round.spilled) s->round.spilled = open_candidate_order(scan_memory() / 4);
    for (Size i = 0; i < s->round.count; ++i)
        put_candidate(s->round.spilled,
                      {s->round.rows[i].distance, tid_number(s->round.rows[i].tid)});
    s->round.count = 0;
}

Candidate* reserve_candidates(ScanState* s, Size wanted) {
    const Size bytes = CandidateSelection::room_for(wanted) * sizeof(Candidate);
    if (bytes > s->candidates.bytes) {
        s->candidates.items =
            static_cast<Candidate*>(scratch_grow(s->scratch, s->candidates.items, 0, bytes));
        s->candidates.bytes = bytes;
    }
    return s->candidates.items;
}

double row_distance(ScanState* s, const StoredVector& row) {
    ++s->report.ranked_rows;
    return ranked_distance(exact_distance(s->meta.metric, s->query.vector, row));
}

void add_row(ScanState* s, double distance, uint64 tid) {
    if (s->last.wait && ranks_last(distance)) {
        const MemoryContext before = MemoryContextSwitchTo(s->context);
        if (!s->last.rows) s->last.rows = open_candidate_order(scan_memory() / 16);
        put_candidate(s->last.rows, {distance, tid});
        MemoryContextSwitchTo(before);
        return;
    }
    ++s->round.added;
    if (s->round.spilled) {
        put_candidate(s->round.spilled, {distance, tid});
        return;
    }
    if (s->round.count * sizeof(RankedRow) == s->round.bytes) {
        expect_rows(s, std::max<Size>(64, s->round.count));
        --s->round.added;
        add_row(s, distance, tid);
        return;
    }
    s->round.rows[s->round.count++] = {distance, number_tid(tid)};
}

Size new_candidates(IndexScanDesc scan, ScanState* s, Candidate* candidates, Size count) {
    std::sort(candidates, candidates + count,
              [](const Candidate& a, const Candidate& b) { return a.id < b.id; });
    count = static_cast<Size>(
        std::unique(candidates, candidates + count,
                    [](const Candidate& a, const Candidate& b) { return a.id == b.id; }) -
        candidates);
    count = drop_known(scan, s, candidates, count);
    s->progress.ranked += static_cast<int64>(count);
    s->report.candidates += static_cast<int64>(count);
    return count;
}

void rank_candidates(IndexScanDesc scan, ScanState* s, Candidate* candidates, Size count) {
    expect_rows(s, count);
    count = new_candidates(scan, s, candidates, count);
    visit_rows(s, candidates, count, [s](const Candidate& candidate, double distance) {
        if (s->bound.given) {
            note_ranked(&s->bound, candidate.distance, distance);
            if (!is_within(s->bound, distance)) return false;
        }
        add_row(s, distance, candidate.id);
        keep_row(s->reader, s->cache);
        return true;
    });
}

float code_shift(const ScanState* s) {
    return code_shift(s->meta, s->query.vector.values);
}

NearestDistances nearest_distances(const ScanSearch& search, Size k, bool by_refinements) {
    const auto waiting_of = [by_refinements](const ScanState* s) {
        return by_refinements && s->refined.used ? s->refined.count : 0;
    };
    Size room = 0;
    for (int i = 0; i < search.count; ++i) {
        const ScanState* s = search.parts[i];
        if (s->round.spilled) return {};
        room += s->round.count + waiting_of(s);
    }
    if (k == 0 || room < k) return {};
    auto* distances = static_cast<double*>(palloc(room * sizeof(double)));
    Size count = 0;
    for (int i = 0; i < search.count; ++i) {
        const ScanState* s = search.parts[i];
        for (Size row = 0; row < s->round.count; ++row)
            distances[count++] = s->round.rows[row].distance;
        for (Size w = 0; w < waiting_of(s); ++w) {
            const WaitingCandidate& candidate = s->refined.waiting[w];
            if (std::isfinite(candidate.least))
                distances[count++] = candidate.least + candidate.beyond;
        }
    }
    if (count < k) {
        pfree(distances);
        return {};
    }
    std::nth_element(distances, distances + k - 1, distances + count);
    return {distances, distances[k - 1]};
}

double kth_distance(const ScanSearch& search, Size k, bool by_refinements) {
    const NearestDistances nearest = nearest_distances(search, k, by_refinements);
    if (nearest.items) pfree(nearest.items);
    return nearest.kth;
}

void note_visit(ScanState* s, double by_code, bool passes) {
    if (std::isnan(by_code) || s->round.spilled) return;
    const auto add = [s, by_code](KnownDistances* known) {
        if (known->count == known->room) {
            known->room = std::max<Size>(256, 2 * known->room);
            const Size bytes = known->room * sizeof(double);
            known->items =
                static_cast<double*>(known->items ? repalloc_huge(known->items, bytes)
                                                  : MemoryContextAllocHuge(s->context, bytes));
        }
        known->items[known->count++] = by_code;
    };
    add(&s->round.visited);
    if (passes) add(&s->round.passing);
}

void sort_visits(RoundRows* round) {
    for (const KnownDistances& known : {round->visited, round->passing})
        std::sort(known.items, known.items + known.count);
}

Size wanted_of_round(const ScanState* s) {
    return (s->goal.least_rows > 0 ? s->goal.least_rows : Size{s->goal.limit}) +
           s->asked.passed_over;
}

Size wanted_of_round(const ScanSearch& search) {
    return search.count > 1 ? search.k : wanted_of_round(search.parts[0]);
}

Size visits_of_round(const ScanSearch& search) {
    const RoundGoal& goal = search.parts[0]->goal;
    return search.count > 1 ? search.k : std::max<Size>(goal.least_rows, goal.limit);
}

void rank_or_refine(IndexScanDesc scan, ScanState* s, Candidate* candidates, Size count) {
    if (!s->refined.used || !refine_candidates(scan, s, candidates, count))
        rank_candidates(scan, s, candidates, count);
}

namespace {

// Whether candidates are only scored, and wait for visits.
bool scores(const RankedPart& part) {
    return part.have_places && part.s->refined.used;
}

// Ranks the candidates of a part up to this one.
void rank_part(RankedPart* part, Size end) {
    if (end == part->ranked) return;
    const auto rank = part->have_places ? rank_or_refine : rank_candidates;
    in_memory_of(part->s, [&] {
        rank(scan_of(part->s), part->s, part->candidates + part->ranked, end - part->ranked);
    });
    part->ranked = end;
}

// Ranks the candidates of a portion.
void rank_portion(RankedPart* parts, MergedOrder* order, Size end) {
    order->take_until(end);
    if (order->parts > 1)
        prefetch_rows([&](auto prefetch) {
            for (int i = 0; i < order->parts; ++i)
                for (Size c = order->begins[i]; c < order->ends[i] && !scores(parts[i]); ++c)
                    prefetch(parts[i].s, parts[i].candidates[c].id);
        });
    for (int i = 0; i < order->parts; ++i) rank_part(&parts[i], order->ends[i]);
}

// A Merge Append takes a row of each part, and asks for the next one after a row that is among the
// nearest. Ranks a row beyond these, so that this takes no other round.
void rank_beyond(RankedPart* part, double kth) {
    const RoundRows& round = part->s->round;
    const auto has_row_beyond = [&] {
        return scores(*part) ||
               std::any_of(round.rows, round.rows + round.count,
                           [kth](const RankedRow& row) { return row.distance > kth; });
    };
    for (Size step = 1; part->ranked < part->count && !has_row_beyond(); step *= 2)
        rank_part(part, std::min(part->ranked + step, part->count));
}

}  // namespace

void rank_until_sure(const ScanSearch& search, RankedPart* parts, int count, bool goes_on) {
    Size known = 0;  // candidates that were ranked before, and are found again
    for (int i = 0; i < count; ++i) {
        parts[i].ranked = 0;
        parts[i].s->round.unsure = false;
        known += parts[i].s->served.count;
        in_memory_of(parts[i].s, [&] { expect_rows(parts[i].s, parts[i].count); });
    }
    const Effort& effort = effort_of(search);
    ScanState* largest = search.parts[search.largest];
    // All are ranked if the user set the effort, or a bound says which rows are wanted.
    if (!effort.by_error || largest->bound.given) {
        for (int i = 0; i < count; ++i) rank_part(&parts[i], parts[i].count);
        return;
    }
    MergedOrder order = merge_parts(
        count, [&](int i) { return parts[i].count; },
        [&](int i, Size c) { return parts[i].candidates[c].distance; });
    const Size k = wanted_of_round(search);
    const float shift = code_shift(largest);
    // A round that goes on begins with one candidate.
    Size end = std::min(order.count, goes_on ? 1 : std::max<Size>(k, 1) + known);
    double kth, reach;  // infinity: the search lacks rows
    const auto look_further = [&] {
        const NearestDistances nearest = nearest_distances(search, k, parts[0].have_places);
        kth = nearest.kth;
        reach = ranking_reach(
            effort, largest->meta.metric, k, kth, [&nearest](Size i) { return nearest.items[i]; },
            shift);
        if (nearest.items) pfree(nearest.items);
        end = next_portion(order.at, order.count, k, reach,
                           [&order](Size i) { return order.items[i].distance; });
        return end > order.at;
    };
    const bool waits = std::any_of(parts, parts + count, scores);
    while (true) {
        rank_portion(parts, &order, end);
        if (look_further()) continue;
        if (!waits || order.at == order.count) break;
        // Visits tell which rows are dead, or dropped by a filter: others take their places.
        visit_waiting(search, visits_of_round(search));
        if (!look_further()) break;
    }
    free_order(order);
    for (int i = 0; i < count; ++i) {
        parts[i].s->round.unsure =
            parts[i].ranked == parts[i].count && reaches_beyond(reach, parts[i].known_until);
        if (search.reads_beyond) rank_beyond(&parts[i], kth);
    }
}

void begin_rows(ScanState* s) {
    s->round.unsure = false;
    s->round.count = s->round.next = s->round.added = 0;
    s->round.visited.count = s->round.passing.count = 0;
    if (s->round.spilled) close_candidate_order(s->round.spilled);
    s->round.spilled = nullptr;
}

void sort_rows(ScanState* s) {
    if (s->round.spilled) return;
    std::sort(s->round.rows, s->round.rows + s->round.count,
              [](const RankedRow& a, const RankedRow& b) {
                  return a.distance < b.distance ||
                         (a.distance == b.distance && tid_number(a.tid) < tid_number(b.tid));
              });
    // Two portions of the candidates may each have an entry of the same row.
    s->round.count = static_cast<Size>(
        std::unique(s->round.rows, s->round.rows + s->round.count,
                    [](const RankedRow& a, const RankedRow& b) {
                        return a.distance == b.distance && tid_number(a.tid) == tid_number(b.tid);
                    }) -
        s->round.rows);
}

bool more_rows(ScanState* s) {
    if (!s->round.spilled) return false;
    clear_vector_cache(s->cache);
    Candidate part[256];
    const Size count = take_candidates(s->round.spilled, part, lengthof(part));
    s->round.next = s->round.count = 0;
    reserve_rows(s, count);
    for (Size i = 0; i < count; ++i)
        s->round.rows[s->round.count++] = {part[i].distance, number_tid(part[i].id)};
    return count > 0;
}

}  // namespace pgwarp
