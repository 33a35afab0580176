#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "kernels/list_store.h"
#include "extension/index/column.h"
#include "extension/index/lists.h"
#include "extension/index/model.h"
#include "extension/index/page.h"
#include "extension/index/table_rows.h"
#include "extension/scan/entries.h"
#include "extension/scan/exact.h"
#include "extension/knn/batch_state.h"
#include "extension/limits.h"
#include "extension/settings.h"
#include "extension/util/pause.h"

extern "C" {
#include "storage/predicate.h"
}

namespace pgwarp {

namespace {

// The pending list is read before the lists; for an exact search, all are read at once.
void read_compared(KnnBatch* batch) {
    Relation index = batch->index->index;
    const Size bytes = batch->memory.lists / 6;
    do {
        batch->meta = read_meta(index);
        batch->exact = searches_exactly(batch->meta);
    } while (!batch->exact &&
             !read_pending(index, batch->meta, batch->snapshot, bytes, &batch->pending));
    if (batch->exact) batch->pending.tids = read_entries(index, batch->snapshot, {}, bytes).tids;
}

// --- batches

// Of a query with this many candidates: their rows, twice while the array grows, and the list
// search.
Size candidate_bytes(uint32 candidates) {
    return candidates * 2 * sizeof(CandidateRow) + list_search_bytes(candidates);
}

}  // namespace

ListWants wants_of(const KnnBatch* batch, const float* forms, uint32 count) {
    ListWants wants = {
        forms, count, batch->effort.probes,
        static_cast<uint32>(std::min<Size>(kept_candidates(batch->effort), max_list_k)),
        batch->limit};
    wants.effort = batch->effort;
    if (queries_decide(batch)) {
        // Hardly any query takes more, and lists are sorted as far as this.
        constexpr uint32 times = 8;
        constexpr uint32 least = 256;
        wants.probes = std::min(std::max(times * wants.probes, least), batch->meta.lists);
        scale_thresholds(&wants.effort, list_growth(batch->index->index, batch->meta));
    } else {
        wants.effort.threshold = 0;
        if (settings.probes == 0)
            wants.probes = Max(wants.probes, lists_for_all(batch->meta, batch->limit, false));
    }
    if (settings.max_probes > 0)
        wants.probes = Min(wants.probes, static_cast<uint32>(settings.max_probes));
    return wants;
}

// With old_snapshot_threshold, VACUUM may remove rows that the snapshot sees: reports an error if a
// row may have been removed before it was visited. Called after all visits.
void check_batch_snapshot(const KnnBatch* batch) {
    if (!compat_old_snapshots_end()) return;
    const MetaPage& meta = batch->meta;
    uint32* lists = alloc_array<uint32>(Size{meta.lists} + 1);
    uint32 count = 0;
    // A pending list that never had an entry has no place of its own to check.
    if (meta.pending.generation > 0 || BlockNumberIsValid(meta.pending.head))
        lists[count++] = pending_list;
    for (uint32 list = 0; list < meta.lists; ++list) lists[count++] = list;
    check_snapshot(batch->index->index, meta, lists, count, batch->snapshot);
    pfree(lists);
}

namespace {

Size query_bytes(const KnnBatch* batch) {
    // The caller's vector, its index form, result rows, candidate rows, and the list search.
    const auto candidates = static_cast<uint32>(
        batch->exact ? 0 : std::min<Size>(kept_candidates(batch->effort), max_list_k));
    return 2 * batch->index->dims * sizeof(float) + found_bytes(batch->k) +
           candidate_bytes(candidates) + 64;
}

// The k nearest rows that pass are among this many, or some more: fewer may pass by chance.
uint32 rows_to_search(const KnnBatch* batch) {
    constexpr double more = 1.2;
    if (!batch->index->check.passes) return batch->k;
    const double share = std::clamp(batch->index->check.share, 1e-6, 1.0);
    return static_cast<uint32>(
        std::ceil(std::min<double>(more * batch->k / share, most_wanted_rows)));
}

// Room is 0 where memory does not hold one query.
KnnBatch* make_knn_batch(const KnnIndex& index, uint32 k, const KnnMemory& memory,
                         SearchThreads* threads) {
    const MemoryContext context =
        AllocSetContextCreate(CurrentMemoryContext, "knn", ALLOCSET_DEFAULT_SIZES);
    const MemoryContext before = MemoryContextSwitchTo(context);
    auto* batch = static_cast<KnnBatch*>(palloc0(sizeof(KnnBatch)));
    batch->context = context;
    batch->batch_context = AllocSetContextCreate(context, "knn batch", ALLOCSET_DEFAULT_SIZES);
    batch->index = &index;
    batch->k = k;
    batch->memory = memory;
    batch->threads = threads;
    batch->snapshot = RegisterSnapshot(GetActiveSnapshot());
    if (index.by_query) {
        batch->query = open_knn_query(index, k);
        batch->effort = {1, 1, 0};
    } else {
        // As index_beginscan() does for an access method without finer predicate locks.
        PredicateLockRelation(index.index, batch->snapshot);
        batch->reader = open_row_reader(index.heap, index.index, batch->snapshot);
        read_compared(batch);
        batch->limit = rows_to_search(batch);
        batch->effort = choose_effort(batch->meta, batch->limit, false);
        if (settings.max_probes > 0)
            batch->effort.probes =
                Min(batch->effort.probes, static_cast<uint32>(settings.max_probes));
    }
    // Queries that are answered one by one gain nothing from large batches.
    const Size most = index.by_query ? 256 : 16384;
    batch->room = static_cast<uint32>(std::min(most, memory.queries / query_bytes(batch)));
    MemoryContextSwitchTo(before);
    return batch;
}

}  // namespace

bool has_codes_for(const KnnBatch* batch, uint32 query) {
    const uint32 dims = batch->index->dims;
    return kind_of(batch->index->metric, batch->queries + Size{query} * dims, dims) !=
           RowKind::out_of_range;
}

bool scans_go_on(const KnnBatch* batch) {
    return batch->meta.lists > 0 && !batch->exact &&
           settings.iterative_scan != static_cast<int>(IterativeScan::off);
}

// Queries cannot decide on their lists if lists are read in parts: no part has all lists that a
// query takes its radius from.
bool queries_decide(const KnnBatch* batch) {
    return (batch->by_service || fits_all_lists(batch->lists)) && batch->effort.threshold > 0;
}

bool open_lists(KnnBatch* batch, uint32 count) {
    if (batch->meta.lists == 0 || batch->effort.candidates > max_list_k) return false;
    // A batch reads all lists. This pays once single scans would read most of them anyway.
    const bool at_hand = batch->lists && holds_all_lists(batch->lists);
    const bool worth_it = Size{std::max(count, batch->expected)} * batch->effort.probes >=
                          2 * Size{batch->meta.lists};
    if (!at_hand && !worth_it) return false;
    if (!batch->lists_tried) {
        const MemoryContext before = MemoryContextSwitchTo(batch->context);
        pause_at("batch");
        if (!batch->threads) batch->threads = make_search_threads();
        batch->lists = open_list_search(batch->index->index, batch->meta,
                                        current_rows(batch->index->heap, batch->index->index),
                                        batch->memory.lists, batch->threads);
        batch->lists_tried = true;
        MemoryContextSwitchTo(before);
    }
    return batch->lists != nullptr;
}

void form_query(const KnnBatch* batch, uint32 query, float* forms, uint32 place) {
    CHECK_FOR_INTERRUPTS();
    model_form(batch->index->index, batch->meta, batch->queries + Size{query} * batch->index->dims,
               forms + Size{place} * batch->meta.code_dims);
}

KnnBatch* try_knn_batch(const KnnIndex& index, uint32 k, const KnnMemory& memory,
                        SearchThreads* threads) {
    KnnBatch* batch = make_knn_batch(index, k, memory, threads);
    if (batch->room > 0) return batch;
    close_knn_batch(batch);
    return nullptr;
}

KnnBatch* open_knn_batch(const KnnIndex& index, uint32 k, const KnnMemory& memory,
                         SearchThreads* threads) {
    KnnBatch* batch = make_knn_batch(index, k, memory, threads);
    // A quarter of maintenance_work_mem is for queries.
    if (batch->room == 0)
        ereport(ERROR,
                (errcode(ERRCODE_PROGRAM_LIMIT_EXCEEDED),
                 errmsg("memory required is %zu MB, maintenance_work_mem is %d MB",
                        4 * query_bytes(batch) / (1024 * 1024) + 1, maintenance_work_mem / 1024),
                 errhint("Ask for a smaller k.")));
    return batch;
}

void expect_queries(KnnBatch* batch, uint32 count) {
    batch->expected = count;
}

uint32 most_queries(const KnnBatch* batch) {
    return batch->room;
}

uint32 least_queries(const KnnBatch* batch) {
    constexpr uint32 never = std::numeric_limits<uint32>::max();
    // All rows are read once for all queries.
    if (batch->exact || batch->meta.lists == 0) return 2;
    if (batch->effort.candidates > max_list_k || (batch->lists_tried && !batch->lists))
        return never;
    if (batch->lists && holds_all_lists(batch->lists)) return 1;
    // Lists that do not fit are read in parts, by every search.
    const uint32 times = batch->lists && !fits_all_lists(batch->lists) ? 16 : 2;
    if (times == 2 && asks_service(batch, 2)) return 2;
    return (times * batch->meta.lists + batch->effort.probes - 1) / Max(batch->effort.probes, 1u);
}

KnnEffort effort_of(const KnnBatch* batch) {
    return {batch->exact, batch->by_service, batch->meta.lists, batch->effort.probes,
            batch->effort.candidates};
}

void begin_search(KnnBatch* batch, const float* queries, NearestRows* found) {
    MemoryContextReset(batch->batch_context);
    const MemoryContext before = MemoryContextSwitchTo(batch->batch_context);
    batch->queries = queries;
    batch->found = found;
    batch->few = alloc_array<bool>(found->count);
    memset(batch->few, 0, found->count * sizeof(bool));
    constexpr Size room = 1024;
    batch->candidates = {alloc_array<CandidateRow>(room), 0, room};
    batch->roots = nullptr;  // an error may have left it
    MemoryContextSwitchTo(before);
}

// Only rows are kept: other batches may search now.
void end_search(KnnBatch* batch) {
    pfree(batch->candidates.rows);
    batch->candidates = {};
}

bool is_complete(const KnnBatch* batch, uint32 query) {
    return !batch->index->check.passes || !batch->few[query];
}

void close_knn_batch(KnnBatch* batch) {
    if (batch->query) close_knn_query(batch->query);
    if (batch->scan) index_endscan(batch->scan);
    if (batch->pending.tids) close_tid_set(batch->pending.tids);
    if (batch->reader) close_row_reader(batch->reader);
    UnregisterSnapshot(batch->snapshot);
    MemoryContextDelete(batch->context);
}

}  // namespace pgwarp
