#include <algorithm>

#include "extension/index/column.h"
#include "extension/knn/batch_state.h"
#include "extension/scan/scan.h"
#include "extension/table/columns.h"

extern "C" {
#include "miscadmin.h"
}

namespace pgwarp {

NearestRows* open_nearest_rows(uint32 k) {
    auto* found = static_cast<NearestRows*>(palloc0(sizeof(NearestRows)));
    found->context =
        AllocSetContextCreate(CurrentMemoryContext, "knn rows", ALLOCSET_DEFAULT_SIZES);
    found->k = k;
    return found;
}

Size found_bytes(uint32 k) {
    return k * sizeof(KnnRow) + 2 * sizeof(uint32);
}

void begin_rows(NearestRows* found, uint32 count) {
    MemoryContextReset(found->context);
    const MemoryContext before = MemoryContextSwitchTo(found->context);
    found->count = count;
    found->rows = alloc_array<KnnRow>(Size{count} * found->k);
    found->counts = alloc_array<uint32>(count);
    found->dropped = alloc_array<uint32>(count);
    std::fill_n(found->counts, count, 0);
    MemoryContextSwitchTo(before);
}

void begin_parts(NearestRows* found) {
    std::fill_n(found->dropped, found->count, 0);
    found->again = false;
}

NearestRows rows_of_some(const NearestRows& found, uint32 first, uint32 count) {
    NearestRows some = found;
    some.count = count;
    some.rows += Size{first} * found.k;
    some.counts += first;
    some.dropped += first;
    return some;
}

void sort_rows(NearestRows* found, const KnnIndex& index) {
    for (uint32 query = 0; query < found->count; ++query) {
        KnnRow* rows = found->rows + Size{query} * found->k;
        std::sort(rows, rows + found->counts[query], nearer);
        for (uint32 i = 0; i < found->counts[query]; ++i) {
            const double distance = exact_of_ranked(rows[i].distance);
            rows[i].distance =
                index.by_query ? distance : operator_distance(index.metric, distance);
        }
    }
}

namespace {

void offer(NearestRows* found, uint32 query, const KnnRow& row) {
    KnnRow* rows = found->rows + Size{query} * found->k;
    uint32* count = &found->counts[query];
    const auto is_same = [&row](const KnnRow& other) {
        return other.part == row.part && tid_number(other.place) == tid_number(row.place);
    };
    if (*count == found->k && !nearer(row, rows[0])) return;
    if (found->again && std::any_of(rows, rows + *count, is_same)) return;
    if (*count == found->k) std::pop_heap(rows, rows + (*count)--, nearer);
    rows[(*count)++] = row;
    std::push_heap(rows, rows + *count, nearer);
}

// The row that was read last, without its distance.
KnnRow row_at_hand(const KnnBatch* batch, const ItemPointerData& entry) {
    KnnRow row = {};
    row.table = RelationGetRelid(batch->index->heap);
    row.part = batch->index->part;
    row.place = batch->index->entry_places ? entry : place_of_row(batch->reader);
    if (batch->index->key_attribute != 0) {
        const Datum key =
            value_of_row(batch->reader, batch->index->key_attribute, &row.key_is_null);
        if (!row.key_is_null) row.key = key_of(batch->index->names, key, batch->index->key_type);
    }
    return row;
}

double distance_to(const KnnBatch* batch, uint32 query, const StoredVector& vector) {
    const uint32 dims = batch->index->dims;
    check_same_dims(dims, vector.dims, VectorType(vector.format, 0).name());
    return ranked_distance(
        exact_distance(batch->index->metric, batch->queries + Size{query} * dims, vector));
}

// Offers the row that was read last to a query. False: it does not pass the query's check.
bool offer_row(KnnBatch* batch, uint32 query, const StoredVector& vector, KnnRow* row) {
    const KnnRowCheck& check = batch->index->check;
    if (check.passes && !check.passes(check.state, query, slot_of_row(batch->reader))) return false;
    row->distance = distance_to(batch, query, vector);
    if (ranks_last(row->distance) && scans_go_on(batch)) return false;
    offer(batch->found, query, *row);
    return true;
}

// The vector of a candidate's row, and the entry that names it.
StoredVector read_candidate(const KnnBatch* batch, uint64 tid, ItemPointerData* entry) {
    *entry = number_tid(tid);
    const StoredVector vector = read_row(batch->reader, *entry);
    if (vector || !batch->roots) return vector;
    // A version of a HOT chain is found by the chain's root only, which the index has.
    *entry = number_tid(root_of(batch->roots, tid));
    return read_row(batch->reader, *entry);
}

}  // namespace

void add_candidate(KnnBatch* batch, uint32 query, uint64 tid, bool is_wanted) {
    CandidateRows& all = batch->candidates;
    if (all.count == all.room) {
        all.room *= 2;
        all.rows =
            static_cast<CandidateRow*>(repalloc_huge(all.rows, all.room * sizeof(CandidateRow)));
    }
    all.rows[all.count++] = {tid, query, is_wanted};
}

void rank_for_all(KnnBatch* batch, TidSet* tids) {
    walk_rows(batch->reader, tids, [batch](uint64 tid) {
        const StoredVector vector = read_row(batch->reader, number_tid(tid));
        if (!vector) return;
        KnnRow row = row_at_hand(batch, number_tid(tid));
        for (uint32 query = 0; query < batch->found->count; ++query)
            offer_row(batch, query, vector, &row);
    });
    rest_row_reader(batch->reader);
}

void rank_rows(KnnBatch* batch) {
    CandidateRow* all = batch->candidates.rows;
    Size count = batch->candidates.count;
    std::sort(all, all + count);
    // All queries are offered pending rows, unless a device has named the candidates.
    if (!batch->roots)
        count = drop_moved(batch->index->index, batch->meta, batch->pending, all, count,
                           &CandidateRow::tid);
    StoredVector vector;
    KnnRow row;
    visit_in_order(
        batch->reader, count, [all](Size i) { return all[i].tid; },
        [&](Size i) {
            if (i == 0 || all[i].tid != all[i - 1].tid) {
                ItemPointerData entry;
                vector = read_candidate(batch, all[i].tid, &entry);
                if (vector) row = row_at_hand(batch, entry);
            }
            // VACUUM may have moved an entry during a walk, which then meets the entry twice.
            if (i > 0 && !(all[i - 1] < all[i])) return;
            const bool passes = vector && offer_row(batch, all[i].query, vector, &row);
            batch->found->dropped[all[i].query] += !passes && all[i].is_wanted;
        });
    batch->candidates.count = 0;
    rest_row_reader(batch->reader);
}

// The entries of this part whose rows a query has, sorted.
struct KnownPlaces {
    uint64* places;
    uint32 count;

    bool has(const ItemPointerData& place) const {
        return std::binary_search(places, places + count, tid_number(place));
    }
};
KnownPlaces known_places(const KnnBatch* batch, uint32 query) {
    const NearestRows& found = *batch->found;
    const KnnRow* rows = found.rows + Size{query} * found.k;
    KnownPlaces known = {alloc_array<uint64>(found.counts[query]), 0};
    for (uint32 i = 0; i < found.counts[query]; ++i)
        if (rows[i].part == batch->index->part)
            known.places[known.count++] = tid_number(rows[i].place);
    std::sort(known.places, known.places + known.count);
    return known;
}

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
    const KnownPlaces known = known_places(batch, query);
    for (uint32 rows = 0; rows < batch->k;) {
        CHECK_FOR_INTERRUPTS();
        const ItemPointer tid = index_getnext_tid(batch->scan, ForwardScanDirection);
        if (!tid) break;
        const StoredVector found = read_row(batch->reader, *tid);
        if (!found) continue;
        ++rows;
        KnnRow row = row_at_hand(batch, *tid);
        if (known.has(row.place)) continue;
        row.distance = distance_to(batch, query, found);
        offer(batch->found, query, row);
    }
    rest_row_reader(batch->reader);
    pfree(known.places);
    pfree(DatumGetPointer(vector));
    MemoryContextSwitchTo(before);
}

}  // namespace pgwarp
