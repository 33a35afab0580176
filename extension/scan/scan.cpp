// ORDER BY v <op> query: rounds of candidates from the lists, each ranked by exact distance.
//
// A round searches for a number of nearest rows: it takes the lists nearest to the query, and from
// these the nearest candidates by their codes. It reads their rows, drops those that are invisible
// or do not pass the plan's filters, sorts the rest by exact distance and returns those that are
// among the rows it has searched for. If too few of these are wanted ones, or the executor fetches
// more, the next search is for more rows. So the n-th row that a scan returns is as likely right as
// if n had been the LIMIT. The scan ends with the index, or when no more rows are expected within
// the bound of the query's condition (bound.h).
//
// Where the index has refinements, a round reads only the rows that may be the next ones to return,
// and goes on with its other candidates when more are fetched (refine.cpp).
//
// Entries of the pending list have no codes. The scan ranks them by exact distance when it begins,
// and each round returns the nearest of those that remain.
//
// Rows whose distance is not finite come last, as in a sort: those that rounds meet wait, and those
// that have no direction lie in a list of their own, which is read at the end.
//
// The service may answer rounds (service_rounds.cpp). Its distances may differ from the backend's
// in the last bits, so no floor separates its candidates from the rest. The scan remembers these
// candidates. When the service answers no further round, the next one starts from the first
// candidate again and skips them.
//
// A scan holds no pin or lock between two calls. That is safe with an MVCC snapshot: if a TID was
// reused for another row after the scan read the candidate, that row is not visible.

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "extension/index/column.h"
#include "extension/index/format.h"
#include "extension/scan/scan.h"
#include "extension/index/effort.h"
#include "extension/scan/exact.h"
#include "extension/scan/given.h"
#include "extension/scan/limit.h"
#include "extension/index/model.h"
#include "extension/index/page.h"
#include "extension/scan/state.h"
#include "extension/scan/tables.h"
#include "extension/service/client.h"
#include "extension/settings.h"
#include "extension/table/heap_hints.h"
#include "extension/util/pause.h"

extern "C" {
#include "access/relscan.h"
#include "miscadmin.h"
#include "pgstat.h"
#include "utils/memutils.h"
#include "utils/snapmgr.h"
}

namespace pgwarp {

bool (*give_rows)(IndexScanDesc scan, GivenRows* rows) = nullptr;

namespace {

ScanState* state_of(IndexScanDesc scan) {
    return static_cast<ScanState*>(scan->opaque);
}

// --- rounds

void begin_model(IndexScanDesc scan, ScanState* s, const MetaPage& meta) {
    check_same_dims(s->query.vector.dims, meta.dims, type_of(scan->indexRelation).name());
    s->meta = meta;
    const RowKind kind = kind_of(meta.metric, s->query.vector.values, s->query.vector.dims);
    s->exact.wanted = searches_exactly(meta) || s->conditions.ranks_rows ||
                      (kind == RowKind::out_of_range && meta.lists > 0);
    // Rows without a finite distance do not wait where there is one round only, nor for a query
    // that is equally far from all rows.
    s->last.wait = settings.iterative_scan != static_cast<int>(IterativeScan::off) &&
                   kind != RowKind::no_direction && !s->exact.wanted;
    s->bound = wanted_bound(scan, meta.metric);
    // Under cosine, all distances from a zero vector are NaN, and all rows pass.
    const VectorView& query = s->query.vector;
    if (s->bound.of_similarity &&
        std::isnan(
            exact_distance(meta.metric, query, {query.values, query.dims, VectorFormat::float32})))
        s->bound.given = false;
    const WantedRows wanted = s->asked.rows > 0
                                  ? WantedRows{s->asked.rows, s->asked.rows, s->asked.rows, 0}
                                  : wanted_rows(scan);
    s->goal.growth = list_growth(scan->indexRelation, meta);
    s->goal.waiting = wanted.of_group;
    // With one round only, the executor's filters drop a part of what it returns.
    const bool off = settings.iterative_scan == static_cast<int>(IterativeScan::off);
    s->goal.least_rows = off && wanted.in_order > 0 ? wanted.rows : wanted.in_order;
    s->goal.probes_given = settings.probes > 0;
    uint32 rows = wanted.rows;
    // A bound may leave fewer rows than LIMIT. A small first round is enough to estimate the limit
    // by code (bound.h), which makes further rounds cheap.
    constexpr uint32 few = 100;
    if (s->bound.given && !off) rows = std::min(rows, few);
    aim_at(s, rows);
    choose_for_audit(scan, s, wanted);
}

// Starts over with the new metapage if VACUUM trains the index while the scan reads its pending
// list: the old metapage has no lists.
void begin_scan(IndexScanDesc scan, ScanState* s) {
    do {
        const MetaPage meta = read_meta(scan->indexRelation);
        pause_at("scan");
        begin_model(scan, s, meta);
    } while (!s->exact.wanted && !rank_pending(scan, s));
    s->progress.started = true;
}

// Whether all rows that have a finite distance were found.
bool lists_ended(const ScanState* s) {
    return s->pending.done && s->group.begin >= s->group.end;
}

// After candidates were ranked.
void end_gathering(Relation index, ScanState* s) {
    s->goal.candidates =
        std::min(2 * s->goal.candidates, std::max(s->goal.candidates, most_candidates()));
    ++s->report.rounds;
    const char* why;
    if (s->meta.lists == 0 && settings.executor != static_cast<int>(ExecutorChoice::cpu) &&
        service_serves(&why))
        s->report.reason = "the index is not trained yet";
    expect_recall(s);
    if (!s->asked.repeated) report_round(index, &s->report);
    if (lists_ended(s) && !may_have_last_rows(index, s)) s->last.done = true;
    s->progress.finished =
        (lists_ended(s) && s->last.done) ||
        settings.iterative_scan == static_cast<int>(IterativeScan::off) ||
        (settings.max_scan_tuples > 0 && s->progress.ranked >= settings.max_scan_tuples);
}

// Adds candidates of some parts to their current rounds.
void gather(const ScanSearch& search, ScanState* const* parts, int count) {
    auto** with_lists =
        static_cast<ScanState**>(palloc(static_cast<Size>(count) * sizeof(ScanState*)));
    int left = 0;
    for (int i = 0; i < count; ++i) {
        ScanState* s = parts[i];
        in_memory_of(s, [s] {
            clear_vector_cache(s->cache);
            find_left_out(s);
            if (lists_ended(s) && s->refined.count == 0) gather_last(scan_of(s), s);
            gather_from_pending(s);
        });
        if (s->group.begin < s->group.end) with_lists[left++] = s;
    }
    left = gather_from_service(search, with_lists, left);
    gather_from_lists(search, with_lists, left);
    visit_waiting(search, visits_of_round(search));
    for (int i = 0; i < count; ++i)
        in_memory_of(parts[i], [s = parts[i]] { end_gathering(scan_of(s)->indexRelation, s); });
    pfree(with_lists);
}

// --- enough?

Size least_rows(const ScanSearch& search) {
    return search.count > 1 ? search.k : search.parts[0]->goal.least_rows;
}

Size added_rows(const ScanSearch& search) {
    Size added = 0;
    for (int i = 0; i < search.count; ++i) added += search.parts[i]->round.added;
    return added;
}

// Those of all parts, sorted.
KnownDistances join_distances(const ScanSearch& search, KnownDistances RoundRows::*which) {
    KnownDistances all = {};
    for (int i = 0; i < search.count; ++i) all.room += (search.parts[i]->round.*which).count;
    all.items = static_cast<double*>(
        MemoryContextAllocHuge(CurrentMemoryContext, Max(all.room, Size{1}) * sizeof(double)));
    for (int i = 0; i < search.count; ++i) {
        const KnownDistances& part = search.parts[i]->round.*which;
        std::copy_n(part.items, part.count, all.items + all.count);
        all.count += part.count;
    }
    std::sort(all.items, all.items + all.count);
    return all;
}

// Among how many of the nearest candidates the wanted rows are spread. If too few rows were found,
// the missing ones are assumed to be as rare.
double spread_of_rows(const ScanSearch& search) {
    const Size least = least_rows(search);
    const KnownDistances visited = join_distances(search, &RoundRows::visited);
    const KnownDistances passing = join_distances(search, &RoundRows::passing);
    double spread = std::numeric_limits<double>::infinity();
    // Rows of the pending list have no code: candidates of the lists count as nearer.
    if (passing.count == 0 && added_rows(search) >= least)
        spread = static_cast<double>(2 * visited.count + least);
    else if (passing.count > 0 && added_rows(search) < least)
        spread = static_cast<double>(visited.count * least) / static_cast<double>(passing.count);
    else if (passing.count > 0)
        spread = even_spread(passing.items, std::min(least, passing.count), visited.items,
                             visited.count);
    pfree(visited.items);
    pfree(passing.items);
    return spread;
}

// Whether the rounds have the rows that they are for, among those that were searched for.
bool has_enough(const ScanSearch& search) {
    const Size least = least_rows(search);
    if (added_rows(search) < least) return false;
    const bool all = std::any_of(search.parts, search.parts + search.count,
                                 [](const ScanState* s) { return s->round.spilled != nullptr; });
    // Where no list is left, no other row is to be found, however the rows are spread.
    const bool ended = std::all_of(search.parts, search.parts + search.count, lists_ended);
    if (all || ended || !(effort_of(search).threshold > 0) || least == 0) return true;
    return spread_of_rows(search) <= tolerated_spread(static_cast<double>(limit_of(search)));
}

// Whether a part may have more of the k nearest rows than it was searched for, and is searched for
// them now. Devices know the radius of their own part only.
bool searches_further(const ScanSearch& search, ScanState* s, double kth) {
    if (search.count == 1 || s->progress.finished) return false;
    const bool left_out = s->refined.left_out <= kth && !std::isinf(s->refined.left_out);
    const auto near = static_cast<double>(
        std::count_if(s->round.rows, s->round.rows + s->round.count,
                      [kth](const RankedRow& row) { return row.distance <= kth; }));
    const auto k = static_cast<double>(search.k);
    const bool many = s->report.by_service && s->goal.limit < search.k &&
                      (near >= k || near > tolerated_spread(s->goal.limit));
    return (left_out || many) && search_for_more(scan_of(s)->indexRelation, s, near + 1);
}

// Searches for this many rows, or about as many.
void search_for_more(ScanSearch* search, ScanState* const* parts, int count, double rows) {
    const double times = rows / static_cast<double>(limit_of(*search));
    for (int i = 0; i < count; ++i)
        in_memory_of(parts[i], [&] {
            search_for_more(scan_of(parts[i])->indexRelation, parts[i],
                            times * parts[i]->goal.limit);
        });
    if (search->count > 1) search->limit = longer_limit(search->limit, rows);
}

// Gathers candidates until the rounds have enough rows.
void gather_round(ScanSearch* search) {
    const auto size = static_cast<Size>(search->count) * sizeof(ScanState*);
    auto** parts = static_cast<ScanState**>(palloc(size));
    const auto choose = [&](auto wanted) {
        return static_cast<int>(
            std::copy_if(search->parts, search->parts + search->count, parts, wanted) - parts);
    };
    const auto goes_on = [](const ScanState* s) { return !s->progress.finished; };
    int count = choose([](const ScanState*) { return true; });
    while (true) {
        gather(*search, parts, count);
        if (choose(goes_on) == 0) break;
        count = choose([&](const ScanState* s) { return goes_on(s) && s->round.unsure; });
        if (count > 0) continue;
        const double kth = search->count > 1 ? kth_distance(*search, search->k, true) : 0;
        count = choose([&](ScanState* s) { return searches_further(*search, s, kth); });
        if (count > 0) continue;
        if (has_enough(*search)) break;
        count = choose(goes_on);
        search_for_more(search, parts, count, rows_to_reach(spread_of_rows(*search)));
    }
    pfree(parts);
}

// Reads the metapage and the pending list, if the scan has not done so.
void prepare_scan(IndexScanDesc scan, ScanState* s) {
    if (s->progress.started) return;
    const MemoryContext before = MemoryContextSwitchTo(s->context);
    const bool off = settings.iterative_scan == static_cast<int>(IterativeScan::off);
    const RowFilter filter = off ? RowFilter{} : wanted_filter(scan, s->conditions);
    if (s->reader || filter.passes) set_row_filter(reader_of(s), filter);
    begin_scan(scan, s);
    MemoryContextSwitchTo(before);
}

// Rows behind those that were searched for wait for the next round, which may find nearer ones.
void keep_sure_rows(ScanState* s) {
    if (s->progress.finished || lists_ended(s) || s->round.spilled || s->bound.given) return;
    // The goal.limit nearest candidates are sure; all of them if the user set the effort. A row
    // whose code is unknown, or that has none, may be farther than rows of lists that were not
    // read.
    sort_visits(&s->round);
    const KnownDistances& visited = s->round.visited;
    const KnownDistances& passing = s->round.passing;
    if (visited.count == 0) return;
    Size sure = passing.count;
    if (s->goal.effort.threshold > 0 && visited.count > s->goal.limit)
        sure = static_cast<Size>(std::upper_bound(passing.items, passing.items + passing.count,
                                                  visited.items[s->goal.limit - 1]) -
                                 passing.items);
    // Rows that are infinitely far have no order.
    const Size count = std::max<Size>({s->goal.least_rows, sure, 1});
    if (count < s->round.count && std::isfinite(s->round.rows[count].distance))
        hold_back_rows(s, count);
}

// Its rows are complete.
void end_round(IndexScanDesc scan, ScanState* s) {
    if (s->reader) rest_row_reader(s->reader);
    sort_rows(s);
    if (!group_of(scan)) keep_sure_rows(s);
    s->goal.least_rows = 0;
    if (s->audited.k > 0) note_for_audit(scan, s);
    s->audited.k = 0;
}

void next_round(IndexScanDesc scan, ScanState* s) {
    prepare_scan(scan, s);
    if (!s->exact.wanted) {
        // A cursor that wants more than LIMIT may want many more: few rounds, and little too much
        // for one that ends soon.
        constexpr double times = 4;
        in_memory_of(s, [&] {
            if (s->report.rounds > 0)
                search_for_more(scan->indexRelation, s, times * s->goal.limit);
            ScanSearch search{&s, 1};
            search_round(&search);
        });
        return;
    }
    in_memory_of(s, [&] {
        begin_rows(s);
        exact_round(scan, s);
        end_round(scan, s);
    });
}

bool next_rows(IndexScanDesc scan, ScanState* s) {
    const MemoryContext before = MemoryContextSwitchTo(s->context);
    bool more = more_rows(s) || more_waiting_rows(scan, s);
    MemoryContextSwitchTo(before);
    if (!more && !s->progress.finished) {
        next_round(scan, s);
        more = true;
    }
    return more;
}

// Closes temporary files; the memory goes with its context.
void close_orders(ScanState* s) {
    if (s->walk.ordered) close_candidate_order(s->walk.ordered);
    if (s->pending.rows) close_candidate_order(s->pending.rows);
    if (s->last.rows) close_candidate_order(s->last.rows);
    if (s->pending.entries.tids) close_tid_set(s->pending.entries.tids);
    if (s->exact.tids) close_tid_set(s->exact.tids);
    if (s->round.spilled) close_candidate_order(s->round.spilled);
    s->walk.ordered = s->pending.rows = s->last.rows = s->round.spilled = nullptr;
    s->pending.entries.tids = s->exact.tids = nullptr;
}

VectorView query_of(IndexScanDesc scan) {
    if (const RepeatedSearch* repeated = state_of(scan)->asked.repeated) return repeated->query;
    const ScanKey key = &scan->orderByData[0];
    // Every distance from null is null, so the scan returns all rows, in any order.
    if (key->sk_flags & SK_ISNULL) {
        const uint32 dims = read_meta(scan->indexRelation).dims;
        return {static_cast<float*>(palloc0(dims * sizeof(float))), dims};
    }
    // Copied, because the executor owns the key's memory.
    const VectorView given = type_of(scan->indexRelation).view(key->sk_argument);
    float* values = static_cast<float*>(palloc(given.dims * sizeof(float)));
    memcpy(values, given.values, given.dims * sizeof(float));
    return {values, given.dims};
}

void start(IndexScanDesc scan, ScanState* s) {
    // The planner avoids such scans: their cost is infinite.
    if (scan->numberOfOrderBys != 1)
        elog(ERROR, "cannot scan ivfpq index \"%s\" by %d distances",
             RelationGetRelationName(scan->indexRelation), scan->numberOfOrderBys);
    if (!IsMVCCSnapshot(scan->xs_snapshot))
        elog(ERROR, "non-MVCC snapshots are not supported with ivfpq");
    const RepeatedSearch* repeated = s->asked.repeated;
    if (!repeated) compat_count_search(scan);
    const MemoryContext before = MemoryContextSwitchTo(s->context);
    s->query.vector = query_of(scan);
    s->conditions = repeated ? repeated->conditions : wanted_conditions(scan);
    s->scratch = open_scratch(s->context);
    s->cache = open_vector_cache(s->context, s->scratch);
    s->query.form = scratch_array<float>(s->scratch, s->query.vector.dims);
    s->progress.last_distance = -std::numeric_limits<double>::infinity();
    MemoryContextSwitchTo(before);
}

// The executor reads rows all over the table.
void prefetch_given(IndexScanDesc scan, const GivenRows& given) {
    if (!can_hint(scan->heapRelation)) return;
    for (const auto prefetch : {prefetch_hint, prefetch_page, prefetch_tuple})
        for (Size i = 0; i < given.count; ++i) prefetch(scan->heapRelation, given.tids[i]);
}

// The rows of a search that was made before, by a join, are the scan's only round.
bool take_given_rows(IndexScanDesc scan, ScanState* s) {
    if (!give_rows) return false;
    const MemoryContext before = MemoryContextSwitchTo(s->context);
    GivenRows given;
    const bool taken = give_rows(scan, &given);
    if (taken) {
        s->query.vector = query_of(scan);
        s->round.rows =
            static_cast<RankedRow*>(palloc(Max(given.count, Size{1}) * sizeof(RankedRow)));
        for (Size i = 0; i < given.count; ++i) s->round.rows[i] = {0, given.tids[i]};
        s->round.count = given.count;
        s->given = true;
        s->progress.finished = true;
        ++s->totals.given;
        prefetch_given(scan, given);
    }
    MemoryContextSwitchTo(before);
    return taken;
}

}  // namespace

RowReader* reader_of(ScanState* s) {
    if (s->reader) return s->reader;
    // It outlives rescans, as the state does.
    const MemoryContext before = MemoryContextSwitchTo(GetMemoryChunkContext(s->end));
    const IndexScanDesc scan = s->end->of;
    s->reader = open_row_reader(scan->heapRelation, scan->indexRelation, scan->xs_snapshot);
    MemoryContextSwitchTo(before);
    return s->reader;
}

void prepare_round(IndexScanDesc scan) {
    ScanState* s = state_of(scan);
    start(scan, s);
    if (s->conditions.never) return;
    prepare_scan(scan, s);
}

void search_round(ScanSearch* search) {
    for (int i = 0; i < search->count; ++i) begin_rows(search->parts[i]);
    gather_round(search);
    for (int i = 0; i < search->count; ++i)
        in_memory_of(search->parts[i], [s = search->parts[i]] { end_round(scan_of(s), s); });
}

namespace {

// Memory of scans that have ended, for the next ones. A query of many partitions begins as many
// scans, and taking their memory from the system each time would cost it page faults.
constexpr int most_kept = 64;
ScanState* kept_states[most_kept];
int kept_count = 0;

void keep_state(ScanState* s) {
    s->end = nullptr;
    if (kept_count == most_kept) {
        MemoryContextDelete(s->context);
        pfree(s);
        return;
    }
    MemoryContextReset(s->context);
    kept_states[kept_count++] = s;
}

ScanState* take_state() {
    if (kept_count > 0) {
        ScanState* s = kept_states[--kept_count];
        const MemoryContext context = s->context;
        *s = {};
        s->context = context;
        return s;
    }
    auto* s = static_cast<ScanState*>(MemoryContextAllocZero(TopMemoryContext, sizeof(ScanState)));
    s->context = AllocSetContextCreate(TopMemoryContext, "ivfpq scan", ALLOCSET_DEFAULT_SIZES);
    return s;
}

void end_state(void* argument) {
    ScanState* s = static_cast<ScanEnd*>(argument)->scan;
    if (s) keep_state(s);
}

}  // namespace

IndexScanDesc ivfpq_begin_scan(Relation index, int keys, int order_bys) {
    IndexScanDesc scan = RelationGetIndexScan(index, keys, order_bys);
    auto* end = static_cast<ScanEnd*>(palloc0(sizeof(ScanEnd)));
    ScanState* s = take_state();
    s->end = end;
    end->scan = s;
    end->of = scan;
    end->callback.func = end_state;
    end->callback.arg = end;
    MemoryContextRegisterResetCallback(CurrentMemoryContext, &end->callback);
    scan->opaque = s;
    return scan;
}

void want_rows(IndexScanDesc scan, uint32 rows, uint32 passed_over) {
    state_of(scan)->asked = {rows, passed_over, nullptr};
}

void repeat_search(IndexScanDesc scan, const RepeatedSearch* search) {
    state_of(scan)->asked.repeated = search;
}

double returned_distance(IndexScanDesc scan) {
    const RoundRows& round = state_of(scan)->round;
    return round.rows[round.next - 1].distance;
}

ScanTotals totals_of(const ScanState* s) {
    ScanTotals totals = s->totals;
    if (s->report.rounds == 0) return totals;
    ++totals.searches;
    totals.served += s->report.by_service;
    totals.rounds += s->report.rounds;
    totals.probes += s->report.probes;
    totals.candidates += s->report.candidates;
    totals.ranked_rows += s->report.ranked_rows;
    if (!s->report.by_service) totals.reason = s->report.reason;
    if (s->report.score > 0 && (totals.score == 0 || s->report.score < totals.score))
        totals.score = s->report.score;
    totals.expectations += s->report.expected_recall > 0;
    totals.expected_recall += s->report.expected_recall;
    return totals;
}

void begin_anew(IndexScanDesc scan) {
    ScanState* s = state_of(scan);
    // Nothing was done yet.
    if (!s->query.vector) return;
    close_orders(s);
    const AskedRows asked = s->asked;
    const ScanTotals totals = totals_of(s);
    void* const note = s->note;
    ScanEnd* const end = s->end;
    const MemoryContext context = s->context;
    RowReader* const reader = s->reader;
    MemoryContextReset(context);
    *s = {};
    s->asked = asked;
    s->totals = totals;
    s->note = note;
    s->end = end;
    s->context = context;
    s->reader = reader;
}

void ivfpq_rescan(IndexScanDesc scan, ScanKey keys, int, ScanKey order_bys, int) {
    begin_anew(scan);
    if (keys && scan->numberOfKeys > 0)
        memmove(scan->keyData, keys, static_cast<Size>(scan->numberOfKeys) * sizeof(ScanKeyData));
    if (order_bys && scan->numberOfOrderBys > 0)
        memmove(scan->orderByData, order_bys,
                static_cast<Size>(scan->numberOfOrderBys) * sizeof(ScanKeyData));
}

bool ivfpq_get_tuple(IndexScanDesc scan, ScanDirection direction) {
    Assert(ScanDirectionIsForward(direction));
    (void)direction;
    ScanState* s = state_of(scan);
    if (!s->query.vector && !take_given_rows(scan, s)) {
        begin_group_of(scan);
        if (!s->query.vector) start(scan, s);
    }
    if (s->conditions.never) return false;
    while (true) {
        if (s->round.next >= s->round.count) {
            if (s->progress.limit_met || !next_rows(scan, s)) return false;
            continue;
        }
        const RankedRow& row = s->round.rows[s->round.next++];
        if (settings.iterative_scan == static_cast<int>(IterativeScan::strict_order)) {
            if (row.distance < s->progress.last_distance) continue;
            s->progress.last_distance = row.distance;
        }
        scan->xs_heaptid = row.tid;
        if (s->given && scan->xs_heapfetch && can_hint(scan->heapRelation))
            pin_hinted(scan->heapRelation, scan->xs_heapfetch, row.tid);
        else if (s->reader)
            pin_for_fetch(s->reader, scan->xs_heapfetch, row.tid);
        scan->xs_recheck = s->conditions.recheck;
        scan->xs_recheckorderby = false;
        return true;
    }
}

void ivfpq_end_scan(IndexScanDesc scan) {
    ScanState* s = state_of(scan);
    close_orders(s);
    if (s->reader) close_row_reader(s->reader);
    s->end->scan = nullptr;
    keep_state(s);
}

}  // namespace pgwarp
