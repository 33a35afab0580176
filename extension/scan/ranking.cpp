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

// Distances by code are in units of their own (bound.h).
double code_scale(const ScanState* s) {
    return normalizes(s->meta.metric) ? 2 : 1;
}

void note_error(ScanState* s, double code, double exact) {
    const double difference = code / code_scale(s) - exact;
    if (std::isfinite(difference)) s->round.errors.add(difference);
}

// What other scans of the group have found, if codes of this index err as theirs do. An audit
// compares all rows that this scan was to find.
const GroupBound* group_bound_of(const ScanState* s) {
    const GroupBound* group = s->group_bound;
    if (!group || !group->like || s->audited.k > 0) return nullptr;
    return has_like_codes(*group->like, s->meta) ? group : nullptr;
}

// The greatest distance by code that a row nearer than the k-th ranked one may have, but for few.
double last_worth_ranking(const ScanState* s, Size k) {
    // Of the rows that are not ranked few have such an error, and few of these are near.
    constexpr double missing = 0.002;
    constexpr double least_errors = 16;
    constexpr double nothing = std::numeric_limits<double>::infinity();
    Differences errors = s->round.errors;
    double kth = nothing;
    if (const GroupBound* group = group_bound_of(s)) {
        errors.add(group->errors);
        kth = group->kth;
    }
    if (s->round.spilled || errors.count < least_errors) return nothing;
    if (s->round.count >= k) {
        auto* distances = static_cast<double*>(palloc(s->round.count * sizeof(double)));
        for (Size i = 0; i < s->round.count; ++i) distances[i] = s->round.rows[i].distance;
        std::nth_element(distances, distances + k - 1, distances + s->round.count);
        kth = std::min(kth, distances[k - 1]);
        pfree(distances);
    }
    return code_scale(s) * (kth + errors.greatest(missing));
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
            if (!is_within(s->bound, distance)) return;
        }
        if (may_rank_fewer(s)) note_error(s, candidate.distance, distance);
        // In the first round.
        if (s->conditions.count > 0 && s->goal.least_rows > 0)
            note_code(&s->codes, candidate.distance, distance);
        add_row(s, distance, candidate.id);
        keep_row(s->reader, s->cache);
    });
}

double radius_of_group(const ScanState* s) {
    const GroupBound* group = group_bound_of(s);
    if (!group || std::isinf(group->kth) || group->errors.count < 1) return 0;
    return code_scale(s) * (group->kth + group->errors.sum / group->errors.count);
}

bool may_rank_fewer(const ScanState* s) {
    return s->goal.least_rows > 0 && s->report.rounds == 0 && s->goal.filtered == 0 &&
           s->conditions.count == 0 && !s->bound.given && !s->asked.repeated &&
           settings.candidates == 0 && settings.target_recall < 1;
}

Size worth_ranking(const ScanState* s, const Candidate* candidates, Size count, Size least) {
    return count_worth_ranking(count, least, Size{s->goal.limit} + s->asked.passed_over,
                               s->goal.margin,
                               [candidates](Size i) { return candidates[i].distance; });
}

namespace {

// Whether a ranked row is farther than those that all partitions together have to find.
bool has_row_beyond(const ScanState* s, double distance) {
    return s->round.spilled ||
           std::any_of(s->round.rows, s->round.rows + s->round.count,
                       [distance](const RankedRow& row) { return row.distance > distance; });
}

}  // namespace

Size rank_until_sure(IndexScanDesc scan, ScanState* s, Candidate* candidates, Size count) {
    // Fewer rows tell too little of the errors of codes.
    constexpr Size least = 32;
    // The Merge Append takes a row of each partition, and asks for the next one where that is among
    // the nearest: another round, unless there is one beyond them.
    constexpr Size least_in_group = 2;
    const Size k = Size{s->goal.limit} + s->asked.passed_over;
    const GroupBound* group = group_bound_of(s);
    expect_rows(s, count);
    Size end = std::min(count, std::max({k, least, count / 4}));
    if (group) {
        const double last = last_worth_ranking(s, k);
        const Size most = end;
        end = std::min(count, least_in_group);
        while (end < most && !(candidates[end].distance > last)) ++end;
    }
    Size ranked = 0;
    while (true) {
        rank_candidates(scan, s, candidates + ranked, end - ranked);
        ranked = end;
        if (ranked == count) break;
        const double last = last_worth_ranking(s, k);
        while (end < std::min(count, 2 * ranked) && !(candidates[end].distance > last)) ++end;
        if (end > ranked) continue;
        if (!group || has_row_beyond(s, group->kth)) break;
        end = std::min(count, 2 * ranked);
    }
    s->round.cut = group && ranked < count;
    return ranked;
}

void begin_rows(ScanState* s) {
    s->round.errors = {};
    s->round.cut = false;
    s->round.count = s->round.next = s->round.added = 0;
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
