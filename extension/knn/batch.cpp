#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "kernels/list_effort.h"
#include "kernels/list_store.h"
#include "extension/index/column.h"
#include "extension/index/format.h"
#include "extension/scan/scan.h"
#include "extension/index/effort.h"
#include "extension/index/lists.h"
#include "extension/index/model.h"
#include "extension/index/page.h"
#include "extension/scan/exact.h"
#include "extension/scan/row_walk.h"
#include "extension/knn/batch.h"
#include "extension/knn/device.h"
#include "extension/knn/lists.h"
#include "extension/settings.h"
#include "extension/table/columns.h"
#include "extension/table/heap_roots.h"
#include "extension/util/disk_reads.h"
#include "extension/util/pause.h"

extern "C" {
#include "access/genam.h"
#include "access/relscan.h"
#include "pgstat.h"
#include "storage/predicate.h"
#include "utils/memutils.h"
#include "utils/snapmgr.h"
}

namespace pgwarp {

namespace {

// A candidate row of a query: its exact distance has to be computed.
struct CandidateRow {
    uint64 tid;
    uint32 query;

    friend bool operator<(const CandidateRow& a, const CandidateRow& b) {
        return a.tid < b.tid || (a.tid == b.tid && a.query < b.query);
    }
};

template <typename T>
T* alloc_array(Size count) {
    return static_cast<T*>(
        MemoryContextAllocHuge(CurrentMemoryContext, Max(count, Size{1}) * sizeof(T)));
}

}  // namespace

struct KnnBatch {
    MemoryContext context;
    MemoryContext batch_context;  // reset by each search
    const KnnIndex* index;
    Snapshot snapshot;
    uint32 k;
    KnnMemory memory;
    uint32 room;  // queries that fit into a batch
    RowReader* reader;
    IndexScanDesc scan;  // for queries short of rows, or too few for a batch; null until used
    KnnQuery* query;     // not null: search by SQL (KnnIndex::by_query)

    MetaPage meta;
    Effort effort;      // one for all queries
    Effort own_effort;  // by query, where all lists are at hand
    // The most candidates of a query all of whose own are within its margin; 0: no more than these.
    uint32 more_candidates;
    uint32 least_passing;  // candidates of a query that pass the check, for its rows to be complete
    // Rows of the radius that queries have which decide on their effort, with a check; 0: k
    uint32 radius_k;
    uint64* pending;  // sorted
    Size pending_count;
    bool pending_known;  // false: too many to keep in memory
    SearchThreads* threads;
    ListSearch* lists;
    bool lists_tried;
    TidSet* all;  // of all entries, for an exact search; null: the search is not exact

    // Of the last search:
    const float* queries;  // (count)(dims)
    uint32 count;
    KnnRow* rows;    // (count)(k): heaps with the farthest on top, sorted at the end
    uint32* counts;  // (count)
    uint32* seen;    // (count), with a check: candidates that are visible, and those that pass
    uint32* passed;
    CandidateRow* candidates;
    Size candidate_count;
    Size candidate_room;
    uint32* unsure;  // queries that want more candidates
    uint32 unsure_count;
    RootFinder* roots;  // not null: candidates are visible versions, which may not be entries
};

// --- the pending list

namespace {

struct PendingCopy {
    uint64* tids;
    Size count;
    Size room;
};

void copy_pending_page(void* state, uint32, Page page, const EntryLayout& layout) {
    auto* copy = static_cast<PendingCopy*>(state);
    const ItemPointerData* tids = page_tids(page, layout);
    const uint32 count = page_tail(page)->count;
    if (copy->count + count > copy->room) {
        copy->room = 2 * (copy->count + count);
        copy->tids = static_cast<uint64*>(repalloc_huge(copy->tids, copy->room * sizeof(uint64)));
    }
    for (uint32 i = 0; i < count; ++i) copy->tids[copy->count++] = tid_number(tids[i]);
}

void forget_pending(void* state) {
    static_cast<PendingCopy*>(state)->count = 0;
}

// The pending list is read before the lists: training moves its entries to lists, so that one that
// moves in between is seen twice, never missed.
void read_pending(KnnBatch* batch) {
    Relation index = batch->index->index;
    PendingCopy copy{alloc_array<uint64>(max_page_entries), 0, max_page_entries};
    bool sound;
    do {
        batch->meta = read_meta(index);
        const Size entries =
            Size{batch->meta.pending.pages} * EntryLayout::pending().capacity * sizeof(uint64);
        batch->pending_known = entries <= batch->memory.lists / 6;
        if (!batch->pending_known) break;
        copy.count = 0;
        const uint32 list = pending_list;
        walk_lists(index, batch->meta, &list, 1,
                   {copy_pending_page, &copy, nullptr, forget_pending});
        // An untrained index may have been trained during the walk, which moved entries to lists.
        sound = batch->meta.lists > 0 || read_meta(index).build_id == batch->meta.build_id;
    } while (!sound);
    std::sort(copy.tids, copy.tids + copy.count);
    batch->pending = copy.tids;
    batch->pending_count =
        static_cast<Size>(std::unique(copy.tids, copy.tids + copy.count) - copy.tids);
}

// --- ranking

void offer(KnnBatch* batch, uint32 query, const KnnRow& row) {
    KnnRow* rows = batch->rows + Size{query} * batch->k;
    uint32* count = &batch->counts[query];
    if (*count < batch->k) {
        rows[(*count)++] = row;
        std::push_heap(rows, rows + *count, nearer);
    } else if (nearer(row, rows[0])) {
        std::pop_heap(rows, rows + *count, nearer);
        rows[*count - 1] = row;
        std::push_heap(rows, rows + *count, nearer);
    }
}

// The row that was read last, without its distance.
KnnRow row_at_hand(const KnnBatch* batch, const ItemPointerData& entry) {
    KnnRow row = {};
    row.table = RelationGetRelid(batch->index->heap);
    row.place = batch->index->entry_places ? entry : place_of_row(batch->reader);
    if (batch->index->key_attribute != 0) {
        const Datum key =
            value_of_row(batch->reader, batch->index->key_attribute, &row.key_is_null);
        if (!row.key_is_null) row.key = key_of(key, batch->index->key_type);
    }
    return row;
}

double distance_to(const KnnBatch* batch, uint32 query, const StoredVector& vector) {
    const uint32 dims = batch->index->dims;
    check_same_dims(dims, vector.dims, VectorType(vector.format, 0).name());
    return exact_distance(batch->index->metric, batch->queries + Size{query} * dims, vector);
}

// Offers the row that was read last to a query, if it passes the query's check.
void offer_row(KnnBatch* batch, uint32 query, const StoredVector& vector, KnnRow* row) {
    const KnnRowCheck& check = batch->index->check;
    if (check.passes) {
        ++batch->seen[query];
        if (!check.passes(check.state, query, slot_of_row(batch->reader))) return;
        ++batch->passed[query];
    }
    row->distance = distance_to(batch, query, vector);
    offer(batch, query, *row);
}

void add_candidate(void* state, uint32 query, uint64 tid) {
    auto* batch = static_cast<KnnBatch*>(state);
    if (batch->candidate_count == batch->candidate_room) {
        batch->candidate_room *= 2;
        batch->candidates = static_cast<CandidateRow*>(
            repalloc_huge(batch->candidates, batch->candidate_room * sizeof(CandidateRow)));
    }
    batch->candidates[batch->candidate_count++] = {tid, query};
}

void add_unsure(void* state, uint32 query) {
    auto* batch = static_cast<KnnBatch*>(state);
    batch->unsure[batch->unsure_count++] = query;
}

// Ranks one row for the queries it is a candidate of: candidates[at .. end), or for all queries if
// it is pending.
void rank_row(KnnBatch* batch, uint64 tid, bool is_pending, Size at, Size end) {
    ItemPointerData entry = number_tid(tid);
    StoredVector vector = read_row(batch->reader, entry);
    if (!vector && batch->roots) {
        // A version of a HOT chain is found by the chain's root only, which the index has.
        entry = number_tid(root_of(batch->roots, tid));
        vector = read_row(batch->reader, entry);
    }
    if (!vector) return;
    KnnRow row = row_at_hand(batch, entry);
    if (is_pending) {
        for (uint32 query = 0; query < batch->count; ++query) offer_row(batch, query, vector, &row);
        return;
    }
    for (Size i = at; i < end; ++i) {
        // VACUUM may have moved an entry during a walk, which then meets the entry twice.
        if (i > at && batch->candidates[i].query == batch->candidates[i - 1].query) continue;
        offer_row(batch, batch->candidates[i].query, vector, &row);
    }
}

// Visits candidates, and pending rows if they are wanted, in the order of TIDs, so that each page
// is pinned once.
void rank_rows(KnnBatch* batch, bool with_pending) {
    const Size pending_count = with_pending ? batch->pending_count : 0;
    std::sort(batch->candidates, batch->candidates + batch->candidate_count);
    // Prefetch distances, in candidates.
    constexpr Size page_ahead = 12;
    constexpr Size tuple_ahead = 4;
    const Size read_ahead = rows_to_read_ahead(batch->reader);
    DiskReads reads;
    const auto prefetch = [&](Size candidate, PrefetchStage stage) {
        if (candidate < batch->candidate_count)
            prefetch_row(batch->reader, number_tid(batch->candidates[candidate].tid), stage);
    };
    Size candidate = 0;
    Size next = 0;
    while (candidate < batch->candidate_count || next < pending_count) {
        CHECK_FOR_INTERRUPTS();
        if (reads.needed()) prefetch(candidate + read_ahead, PrefetchStage::read);
        prefetch(candidate + page_ahead, PrefetchStage::page);
        prefetch(candidate + tuple_ahead, PrefetchStage::tuple);
        const bool has_candidate = candidate < batch->candidate_count;
        const bool is_pending =
            next < pending_count &&
            (!has_candidate || batch->pending[next] <= batch->candidates[candidate].tid);
        const uint64 tid = is_pending ? batch->pending[next++] : batch->candidates[candidate].tid;
        Size end = candidate;
        while (end < batch->candidate_count && batch->candidates[end].tid == tid) ++end;
        rank_row(batch, tid, is_pending, candidate, end);
        candidate = end;
    }
    rest_row_reader(batch->reader);
}

// --- an ordinary scan

void scan_for(KnnBatch* batch, uint32 query) {
    const KnnIndex* index = batch->index;
    const MemoryContext before = MemoryContextSwitchTo(batch->context);
    if (!batch->scan) {
        batch->scan = compat_index_beginscan(index->heap, index->index, batch->snapshot, 0, 1);
        want_rows(batch->scan, batch->k);
    }
    const Datum vector =
        type_of(index->index).make(batch->queries + Size{query} * index->dims, index->dims);
    ScanKeyData order = {};
    order.sk_flags = SK_ORDER_BY;
    order.sk_attno = 1;
    order.sk_strategy = 1;
    order.sk_argument = vector;
    index_rescan(batch->scan, nullptr, 0, &order, 1);
    batch->counts[query] = 0;
    while (batch->counts[query] < batch->k) {
        CHECK_FOR_INTERRUPTS();
        const ItemPointer tid = index_getnext_tid(batch->scan, ForwardScanDirection);
        if (!tid) break;
        const StoredVector found = read_row(batch->reader, *tid);
        if (!found) continue;
        KnnRow row = row_at_hand(batch, *tid);
        row.distance = distance_to(batch, query, found);
        offer(batch, query, row);
    }
    rest_row_reader(batch->reader);
    pfree(DatumGetPointer(vector));
    MemoryContextSwitchTo(before);
}

// --- batches

uint32 most_candidates_of(const Effort& effort) {
    const Size most = effort.margin > 0 ? most_ranked_of(effort.candidates, false, effort.wider_k)
                                        : effort.candidates;
    return static_cast<uint32>(std::min<Size>(most, std::numeric_limits<uint32>::max()));
}

// Of a query with this many candidates: their rows, twice while the array grows, and the list
// search.
Size candidate_bytes(uint32 candidates) {
    return candidates * 2 * sizeof(CandidateRow) + list_search_bytes(candidates);
}

// Queries decide on their effort, as single scans do, unless lists have to be read in parts: none
// of these parts has all lists that a query takes its radius from.
bool queries_decide(const KnnBatch* batch) {
    return fits_all_lists(batch->lists) && most_candidates_of(batch->own_effort) <= max_list_k;
}

ListWants wants_of(const KnnBatch* batch, const float* forms) {
    const Effort& own = batch->own_effort;
    ListWants wants = {forms, batch->count, batch->effort.probes, batch->effort.candidates,
                       batch->k};
    if (!queries_decide(batch)) return wants;
    wants.probes = own.probes;
    wants.candidates = most_candidates_of(own);
    wants.margin = own.margin;
    wants.least_candidates = own.candidates;
    if (!(own.threshold > 0)) return wants;
    if (batch->radius_k > 0) wants.k = batch->radius_k;
    // Hardly any query takes more, and lists are sorted as far as this.
    constexpr uint32 times = 8;
    constexpr uint32 least = 256;
    wants.probes = std::min(std::max(times * own.probes, least), batch->meta.lists);
    const double growth = list_growth(batch->index->index, batch->meta);
    wants.threshold = own.threshold * static_cast<float>(std::sqrt(growth));
    wants.first_entries =
        static_cast<uint32>(growth * first_entries(wants.k, batch->meta.rows_at_build));
    wants.first_lists = own.first_lists;
    wants.wider_k = own.wider_k;
    return wants;
}

// A batch reads all lists. This pays once single scans would read most of them anyway.
bool worth_the_lists(const KnnBatch* batch) {
    return Size{batch->count} * batch->effort.probes >= 2 * Size{batch->meta.lists};
}

// Searches again for queries that want more candidates, as many at a time as memory holds.
void search_for_more(KnnBatch* batch, const ListWants& first) {
    const Size dims = batch->meta.code_dims;
    const Size query_bytes = dims * sizeof(float) + candidate_bytes(batch->more_candidates);
    const auto at_once = static_cast<uint32>(
        std::clamp<Size>(batch->memory.queries / 2 / query_bytes, 1, batch->unsure_count));
    float* forms = alloc_array<float>(at_once * dims);
    struct Part {
        KnnBatch* batch;
        const uint32* queries;
    };
    const auto put = [](void* state, uint32 query, uint64 tid) {
        const auto* part = static_cast<const Part*>(state);
        const KnnBatch* batch = part->batch;
        // It was pending, and all queries were offered its row; since then it has moved to a list.
        if (std::binary_search(batch->pending, batch->pending + batch->pending_count, tid)) return;
        add_candidate(part->batch, part->queries[query], tid);
    };
    for (uint32 begin = 0; begin < batch->unsure_count; begin += at_once) {
        Part part{batch, batch->unsure + begin};
        ListWants wants = first;
        wants.forms = forms;
        wants.count = std::min(at_once, batch->unsure_count - begin);
        wants.candidates = batch->more_candidates;
        for (uint32 i = 0; i < wants.count; ++i)
            memcpy(forms + i * dims, first.forms + part.queries[i] * dims, dims * sizeof(float));
        batch->candidate_count = 0;
        search_lists(batch->lists, wants, {put, &part}, ListRound::more);
        rank_rows(batch, false);
    }
    pfree(forms);
}

// Ranks the rows of the candidates, and pending rows. False: the lists cannot be searched.
bool search_by_lists(KnnBatch* batch) {
    if (batch->meta.lists == 0 || !batch->pending_known || batch->effort.candidates > max_list_k)
        return false;
    const bool at_hand = batch->lists && holds_all_lists(batch->lists);
    if (!at_hand && !worth_the_lists(batch)) return false;
    if (!batch->lists_tried) {
        const MemoryContext before = MemoryContextSwitchTo(batch->context);
        pause_at("batch");
        if (!batch->threads) batch->threads = make_search_threads();
        batch->lists =
            open_list_search(batch->index->index, batch->meta, batch->memory.lists, batch->threads);
        batch->lists_tried = true;
        MemoryContextSwitchTo(before);
    }
    if (!batch->lists) return false;

    const Size dims = batch->index->dims, code_dims = batch->meta.code_dims;
    float* forms = alloc_array<float>(batch->count * code_dims);
    for (uint32 i = 0; i < batch->count; ++i) {
        CHECK_FOR_INTERRUPTS();
        model_form(batch->index->index, batch->meta, batch->queries + i * dims,
                   forms + i * code_dims);
    }
    ListWants wants = wants_of(batch, forms);
    if (settings.max_probes > 0)
        wants.probes = Min(wants.probes, static_cast<uint32>(settings.max_probes));
    batch->unsure = alloc_array<uint32>(batch->count);
    batch->unsure_count = 0;
    const bool may_want_more = wants.margin > 0 && batch->more_candidates > wants.candidates;
    search_lists(batch->lists, wants, {add_candidate, batch, may_want_more ? add_unsure : nullptr});
    rank_rows(batch, true);
    if (batch->unsure_count > 0) search_for_more(batch, wants);
    pfree(forms);
    return true;
}

// Ranks the rows of all entries for all queries, in the order of their TIDs.
void search_exactly(KnnBatch* batch) {
    walk_rows(batch->reader, batch->all, [batch](uint64 tid) { rank_row(batch, tid, true, 0, 0); });
    rest_row_reader(batch->reader);
}

void search_entries(KnnBatch* batch) {
    batch->candidate_count = 0;
    const bool untrained = batch->meta.lists == 0 && batch->pending_known;
    const bool by_lists = search_by_lists(batch);
    if (untrained) rank_rows(batch, true);
    // An untrained index has the pending list only, and all of it was searched. Where rows are
    // checked, the caller's scan goes on.
    if (batch->index->check.passes) return;
    const bool may_go_on =
        !untrained && settings.iterative_scan != static_cast<int>(IterativeScan::off);
    for (uint32 i = 0; i < batch->count; ++i)
        if (!untrained && (!by_lists || (batch->counts[i] < batch->k && may_go_on)))
            scan_for(batch, i);
}

// Where old_snapshot_threshold lets VACUUM remove rows that the snapshot sees: reports it, if that
// may have happened to one of these before it was visited. So this comes after all visits.
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

void sort_batch(KnnBatch* batch) {
    for (uint32 i = 0; i < batch->count; ++i) {
        KnnRow* rows = batch->rows + Size{i} * batch->k;
        std::sort(rows, rows + batch->counts[i], nearer);
        for (uint32 r = 0; r < batch->counts[i]; ++r)
            rows[r].distance = operator_distance(batch->index->metric, rows[r].distance);
    }
}

void search_index(KnnBatch* batch) {
    for (uint32 i = 0; i < batch->count; ++i) pgstat_count_index_scan(batch->index->index);
    if (batch->all)
        search_exactly(batch);
    else
        search_entries(batch);
    check_batch_snapshot(batch);
    sort_batch(batch);
}

// Calls with(place) for the places of a query in the batch's leaf.
template <typename With>
void for_each_place(const FoundPlaces& near, uint32 query, With&& with) {
    for (uint32 i = 0; i < near.found[query]; ++i) {
        const uint64 place = near.places[Size{query} * near.most + i];
        if (leaf_of_place(place) == near.leaf) with(tid_of_place(place));
    }
}

void rank_places(KnnBatch* batch, const FoundPlaces& near) {
    for (uint32 i = 0; i < batch->count; ++i)
        for_each_place(near, i, [&](uint64 tid) { add_candidate(batch, i, tid); });
    RootFinder roots{batch->index->heap};
    batch->roots = &roots;
    rank_rows(batch, false);
    batch->roots = nullptr;
    end_root_finder(&roots);
}

Size query_bytes(const KnnBatch* batch) {
    // The caller's vector, its index form, result rows, candidate rows, and the list search.
    const uint32 most = Max(batch->effort.candidates, most_candidates_of(batch->own_effort));
    const uint32 candidates = batch->all ? 0 : Min(most, max_list_k);
    return 2 * batch->index->dims * sizeof(float) + batch->k * sizeof(KnnRow) +
           candidate_bytes(candidates) + 64;
}

// As many rows as without a check are ranked, of those that pass (see cost.cpp): so there are more
// candidates, of more lists. A query decides on its own effort as one does that wants all rows up
// to its k-th that passes.
void aim_by_share(KnnBatch* batch) {
    constexpr double more = 1.2;
    constexpr double few = 8;
    constexpr double most = 1e9;
    const double share = std::clamp(batch->index->check.share, 1e-6, 1.0);
    Effort* effort = &batch->effort;
    const double ranked =
        std::max<double>(effort->candidates, ranked_for_filter(batch->meta, batch->k, share));
    batch->least_passing = static_cast<uint32>(std::min(ranked, most));
    effort->candidates = static_cast<uint32>(std::min(ranked / share * more + few, most));
    if (settings.probes == 0) {
        const double lists = lists_for_filter(batch->meta, more * batch->k / share);
        effort->probes = static_cast<uint32>(
            std::min<double>(std::max<double>(effort->probes, lists), batch->meta.lists));
    }
    effort->threshold = effort->margin = 0;
    batch->own_effort = *effort;
    const double rows = std::ceil(std::min(more * batch->k / share, most));
    const Effort own = choose_effort(batch->meta, static_cast<uint32>(rows),
                                     visiting_costs(batch->meta), ByQuery::yes);
    if (!(own.threshold > 0)) return;
    batch->radius_k = static_cast<uint32>(rows);
    batch->own_effort.threshold = own.threshold;
    batch->own_effort.first_lists = own.first_lists;
    batch->own_effort.wider_k = 0;
    batch->own_effort.candidates = std::max(effort->candidates, own.candidates);
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
        batch->effort = batch->own_effort = {1, 1, 0};
    } else {
        // As index_beginscan() does for an access method without finer predicate locks.
        PredicateLockRelation(index.index, batch->snapshot);
        batch->reader = open_row_reader(index.heap, index.index, batch->snapshot);
        read_pending(batch);
        if (searches_exactly(batch->meta))
            batch->all = read_entries(index.index, batch->snapshot, {}, memory.lists / 6).tids;
        const ScanCosts costs = visiting_costs(batch->meta);
        batch->effort = choose_effort(batch->meta, k, costs);
        batch->own_effort = choose_effort(batch->meta, k, costs, ByQuery::yes);
        // Candidates cost a batch a visit, refinements or not. But a query may want as many as its
        // scan would have.
        if (cpu_costs(batch->meta).refines && batch->own_effort.margin > 0)
            batch->more_candidates = static_cast<uint32>(std::min<Size>(
                most_ranked_of(
                    choose_effort(batch->meta, k, cpu_costs(batch->meta), ByQuery::yes).candidates,
                    true, 0),
                max_list_k));
        if (index.check.passes && batch->meta.lists > 0) aim_by_share(batch);
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

uint32 most_queries(const KnnBatch* batch) {
    return batch->room;
}

Size found_bytes(uint32 k) {
    return k * sizeof(KnnRow) + 3 * sizeof(uint32);
}

uint32 least_queries(const KnnBatch* batch) {
    constexpr uint32 never = std::numeric_limits<uint32>::max();
    // All rows are read once for all queries.
    if (batch->all || (batch->meta.lists == 0 && batch->pending_known)) return 2;
    if (!batch->pending_known || batch->effort.candidates > max_list_k ||
        (batch->lists_tried && !batch->lists))
        return never;
    if (batch->lists && holds_all_lists(batch->lists)) return 1;
    // Lists that do not fit are read in parts, by every search.
    const uint32 times = batch->lists && !fits_all_lists(batch->lists) ? 16 : 2;
    return (times * batch->meta.lists + batch->effort.probes - 1) / Max(batch->effort.probes, 1u);
}

KnnEffort effort_of(const KnnBatch* batch) {
    const bool decide = batch->own_effort.threshold > 0 && batch->lists && queries_decide(batch);
    const Effort& effort = decide ? batch->own_effort : batch->effort;
    return {batch->all != nullptr, batch->meta.lists, effort.probes, effort.candidates};
}

namespace {

void search_by_query(KnnBatch* batch, const KnnValues& equal) {
    const KnnIndex& index = *batch->index;
    for (uint32 i = 0; i < batch->count; ++i) {
        CHECK_FOR_INTERRUPTS();
        KnnRow* rows = batch->rows + Size{i} * batch->k;
        const Size first = Size{i} * static_cast<Size>(index.equal_count);
        batch->counts[i] = run_knn_query(batch->query, batch->queries + Size{i} * index.dims,
                                         {equal.values + first, equal.nulls + first}, rows);
        // An index scan returns rows in order within each of its rounds only.
        std::sort(rows, rows + batch->counts[i], nearer);
    }
}

}  // namespace

namespace {

// The batch's memory is the current context then.
void begin_search(KnnBatch* batch, const float* queries, uint32 count) {
    MemoryContextReset(batch->batch_context);
    MemoryContextSwitchTo(batch->batch_context);
    batch->queries = queries;
    batch->count = count;
    batch->rows = alloc_array<KnnRow>(Size{count} * batch->k);
    batch->counts = alloc_array<uint32>(count);
    batch->seen = alloc_array<uint32>(count);
    batch->passed = alloc_array<uint32>(count);
    memset(batch->counts, 0, count * sizeof(uint32));
    memset(batch->seen, 0, count * sizeof(uint32));
    memset(batch->passed, 0, count * sizeof(uint32));
    batch->candidate_room = 1024;
    batch->candidate_count = 0;
    batch->candidates = alloc_array<CandidateRow>(batch->candidate_room);
    batch->roots = nullptr;  // an error may have left it
}

// Only rows are kept: other batches may search now.
void end_search(KnnBatch* batch) {
    pfree(batch->candidates);
    batch->candidates = nullptr;
    batch->candidate_room = 0;
}

}  // namespace

void search_batch(KnnBatch* batch, const float* queries, uint32 count, const KnnValues& equal) {
    const MemoryContext before = CurrentMemoryContext;
    begin_search(batch, queries, count);
    if (batch->query)
        search_by_query(batch, equal);
    else
        search_index(batch);
    end_search(batch);
    MemoryContextSwitchTo(before);
}

void rank_batch(KnnBatch* batch, const float* queries, uint32 count, const FoundPlaces& near) {
    const MemoryContext before = CurrentMemoryContext;
    begin_search(batch, queries, count);
    for (uint32 i = 0; i < count; ++i) pgstat_count_index_scan(batch->index->index);
    rank_places(batch, near);
    // A snapshot sees what it saw, so this happens to none.
    for (uint32 i = 0; i < count; ++i) {
        uint32 found = 0;
        for_each_place(near, i, [&found](uint64) { ++found; });
        if (batch->counts[i] < std::min(batch->k, found)) scan_for(batch, i);
    }
    sort_batch(batch);
    end_search(batch);
    MemoryContextSwitchTo(before);
}

KnnRows rows_of(const KnnBatch* batch, uint32 query) {
    return {batch->rows + Size{query} * batch->k, batch->counts[query]};
}

bool is_complete(const KnnBatch* batch, uint32 query) {
    const bool all_rows = batch->all || (batch->meta.lists == 0 && batch->pending_known);
    if (!batch->index->check.passes || all_rows) return true;
    if (batch->counts[query] < batch->k || batch->passed[query] < batch->least_passing)
        return false;
    if (settings.probes > 0) return true;
    const double rank = static_cast<double>(batch->k) * batch->seen[query] / batch->passed[query];
    // By chance fewer pass than of others.
    constexpr double by_chance = 1.5;
    if (batch->radius_k > 0 && batch->lists && queries_decide(batch))
        return rank <= by_chance * batch->radius_k;
    return std::min<double>(lists_for_filter(batch->meta, rank), batch->meta.lists) <=
           batch->effort.probes;
}

void forget_rows(KnnBatch* batch) {
    batch->count = 0;
    MemoryContextReset(batch->batch_context);
}

void close_knn_batch(KnnBatch* batch) {
    if (batch->query) close_knn_query(batch->query);
    if (batch->scan) index_endscan(batch->scan);
    if (batch->all) close_tid_set(batch->all);
    if (batch->reader) close_row_reader(batch->reader);
    UnregisterSnapshot(batch->snapshot);
    MemoryContextDelete(batch->context);
}

}  // namespace pgwarp
