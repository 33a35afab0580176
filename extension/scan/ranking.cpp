// Reads the rows of a scan's candidates from the table, and ranks them by exact distance.

#include <algorithm>
#include <cmath>
#include <limits>

#include "extension/index/effort.h"
#include "extension/index/lists.h"
#include "extension/index/model.h"
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
    if (count == 0 || !pending_has_moved(scan->indexRelation, s)) return count;
    uint64* tids = static_cast<uint64*>(palloc(count * sizeof(uint64)));
    bool* found = static_cast<bool*>(palloc(count * sizeof(bool)));
    for (Size i = 0; i < count; ++i) tids[i] = candidates[i].id;
    find_tids(s->pending.tids, tids, count, found);
    Size kept = 0;
    for (Size i = 0; i < count; ++i)
        if (!found[i]) candidates[kept++] = candidates[i];
    pfree(found);
    pfree(tids);
    return kept;
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
    const double distance = exact_distance(s->meta.metric, s->query.vector, row);
    // As in a sort by the operator, NaN comes after the infinite.
    using Limits = std::numeric_limits<double>;
    if (std::isnan(distance)) return Limits::infinity();
    return std::min(distance, Limits::max());
}

void add_row(ScanState* s, double distance, uint64 tid) {
    if (s->last.wait && !(distance < std::numeric_limits<double>::max())) {
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

double code_units(const ScanState* s, double exact) {
    return code_units(s->meta.metric, exact, code_shift(s));
}

namespace {

// `by_refinements`: of rows that wait for a visit, too, as far as these tell.
double kth_distance(const ScanState* s, Size k, bool by_refinements) {
    const Size waiting = by_refinements ? s->refined.count : 0;
    if (k == 0 || s->round.spilled || s->round.count + waiting < k)
        return std::numeric_limits<double>::infinity();
    auto* distances = static_cast<double*>(palloc((s->round.count + waiting) * sizeof(double)));
    Size count = 0;
    for (; count < s->round.count; ++count) distances[count] = s->round.rows[count].distance;
    for (Size i = 0; i < waiting; ++i) {
        const WaitingCandidate& candidate = s->refined.waiting[i];
        if (std::isfinite(candidate.least)) distances[count++] = candidate.least + candidate.beyond;
    }
    double kth = std::numeric_limits<double>::infinity();
    if (count >= k) {
        std::nth_element(distances, distances + k - 1, distances + count);
        kth = distances[k - 1];
    }
    pfree(distances);
    return kth;
}

}  // namespace

double kth_distance(const ScanState* s, Size k) {
    return kth_distance(s, k, false);
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

bool wants_last(const ScanState* s) {
    return (s->goal.least_rows > 0 && s->goal.least_rows < s->goal.limit) ||
           s->round.passing.count < s->round.visited.count;
}

void rank_or_refine(IndexScanDesc scan, ScanState* s, Candidate* candidates, Size count) {
    if (!s->refined.used || !refine_candidates(scan, s, candidates, count))
        rank_candidates(scan, s, candidates, count);
}

namespace {

// The distance by code beyond which candidates are not among the k nearest rows, by the rows found
// so far; infinity: these are fewer. `by_refinements`: as kth_distance() has it.
double code_reach(const ScanState* s, Size k, bool by_refinements) {
    const double kth = kth_distance(s, k, by_refinements);
    if (std::isinf(kth)) return kth;
    const float shift = code_shift(s);
    const CodeReach codes(s->goal.effort, s->goal.kth_code, shift, wants_last(s));
    return codes.by_row(code_units(s, kth)) - shift;
}

}  // namespace

Size rank_until_sure(IndexScanDesc scan, ScanState* s, Candidate* candidates, Size count,
                     const RankedPart& part) {
    const auto rank = part.have_places ? rank_or_refine : rank_candidates;
    s->round.unsure = false;
    expect_rows(s, count);
    // Where the effort is given, and where a bound says which rows are wanted, all are ranked.
    if (!s->goal.effort.by_error || s->bound.given) {
        rank(scan, s, candidates, count);
        return count;
    }
    const Size k = wanted_of_round(s);
    const float shift = code_shift(s);
    Size ranked = 0;
    // At least one, of candidates that a round goes on with. Else, what was ranked before is among
    // them.
    Size end = std::min(count, part.goes_on ? 1 : std::max<Size>(k, 1) + s->served.count);
    if (end > 0 && !part.goes_on)
        s->goal.kth_code = candidates[std::min(end, std::max<Size>(k, 1)) - 1].distance + shift;
    double reach;  // infinity: it lacks rows
    while (true) {
        rank(scan, s, candidates + ranked, end - ranked);
        ranked = end;
        reach = code_reach(s, k, part.have_places && s->refined.used);
        end = next_portion(ranked, count, k, reach,
                           [candidates](Size i) { return candidates[i].distance; });
        if (end == ranked) break;
    }
    s->round.unsure = ranked == count && reach >= part.known_until && !std::isinf(reach);
    return ranked;
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
    // Two parts of the candidates may have an entry each of one row.
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
