// ivfpq_recall: the recall of an index as it is now, with the settings as they are now.
//
// Rows drawn from the table are the queries. One pass over the table finds the true neighbors of
// all of them, then each is searched through the index as a query with LIMIT k would be. A row is
// no neighbor of itself, and the scan gets one more candidate to make up for it. A found row counts
// if it is as near as the k-th true neighbor, so that ties do not lower the recall.
//
// Of an index of a partitioned table, each part is searched as under Merge Append: the nearest of
// what all parts find are compared with the nearest rows of all partitions.

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "kernels/random.h"
#include "extension/curve/true_neighbors.h"
#include "extension/index/column.h"
#include "extension/scan/scan.h"
#include "extension/index/argument.h"
#include "extension/index/lists.h"
#include "extension/index/page.h"
#include "extension/scan/rows.h"
#include "extension/util/signature.h"

extern "C" {
#include "access/relscan.h"
#include "access/tableam.h"
#include "catalog/index.h"
#include "miscadmin.h"
#include "utils/memutils.h"
#include "utils/snapmgr.h"
}

namespace pgwarp {

namespace {

// One pass over the rows that the snapshot sees; calls back as an index build does.
void scan_rows(const OpenIndex& open, Snapshot snapshot, IndexBuildCallback callback, void* state) {
    IndexInfo* info = BuildIndexInfo(open.index);
    info->ii_Concurrent = true;
    TableScanDesc scan = table_beginscan_strat(open.heap, snapshot, 0, nullptr, true, true);
    table_index_build_scan(open.heap, open.index, info, true, false, callback, state, scan);
}

struct Queries {
    uint32 room;
    uint32 count;
    uint64 seen;
    Random random{0};
    VectorType type;
    Metric metric;
    varlena** values;  // (room), detoasted
    uint64* tids;
    int* parts;           // that have the rows
    int part;             // that is being read
    VectorView* vectors;  // (count), of `values`, once all are drawn
};

void draw_query(Relation, ItemPointer tid, Datum* values, bool* nulls, bool, void* state) {
    Queries* queries = static_cast<Queries*>(state);
    if (nulls[0]) return;
    ++queries->seen;
    uint32 slot;
    if (queries->count < queries->room) {
        slot = queries->count++;
        queries->values[slot] = nullptr;
    } else {
        const uint64 draw = queries->random.below(queries->seen);
        if (draw >= queries->room) return;
        slot = static_cast<uint32>(draw);
    }
    if (queries->values[slot]) pfree(queries->values[slot]);
    queries->values[slot] = VectorType::copy(values[0]);
    queries->tids[slot] = tid_number(*tid);
    queries->parts[slot] = queries->part;
}

bool is_self(const Queries& queries, uint32 q, int part, uint64 tid) {
    return queries.tids[q] == tid && queries.parts[q] == part;
}

// NaN sorts last, as in a scan.
bool is_less(double a, double b) {
    return a < b || (std::isnan(b) && !std::isnan(a));
}

// The least distances of each query.
struct Nearest {
    uint32 k;
    double* distances;  // (queries)(k), heaps with the farthest on top
    uint32* counts;     // (queries)

    void add(uint32 query, double distance) const {
        double* mine = distances + Size{query} * k;
        uint32& count = counts[query];
        if (count == k) {
            if (!is_less(distance, mine[0])) return;
            std::pop_heap(mine, mine + count--, is_less);
        }
        mine[count++] = distance;
        std::push_heap(mine, mine + count, is_less);
    }
};

Nearest make_nearest(uint32 queries, uint32 k) {
    const auto alloc = [](Size bytes) {
        return MemoryContextAllocExtended(CurrentMemoryContext, bytes,
                                          MCXT_ALLOC_HUGE | MCXT_ALLOC_ZERO);
    };
    return {k, static_cast<double*>(alloc(Size{queries} * k * sizeof(double))),
            static_cast<uint32*>(alloc(queries * sizeof(uint32)))};
}

// The true neighbors of all queries, (queries)(k); a query's own row is among them.
const Neighbor* find_neighbors(const OpenIndex& open, Snapshot snapshot, const Queries& queries,
                               Metric metric, uint32 k) {
    const uint32 dims = queries.vectors[0].dims;
    const auto alloc = [](Size bytes) {
        return MemoryContextAllocHuge(CurrentMemoryContext, bytes);
    };
    float* forms = static_cast<float*>(alloc(Size{queries.count} * dims * sizeof(float)));
    for (uint32 q = 0; q < queries.count; ++q)
        index_form(metric, queries.vectors[q].values, dims, forms + Size{q} * dims);
    auto* nearest = static_cast<Neighbor*>(alloc(Size{queries.count} * k * sizeof(Neighbor)));
    const QuerySet set{forms, queries.count, k, nearest};
    find_true_neighbors(
        {open.heap, open.index, snapshot, metric, dims, static_cast<double>(queries.seen)}, &set,
        1);
    pfree(forms);
    return nearest;
}

// The exact distances of a query's true neighbors in this part.
void add_neighbors(RowReader* reader, Metric metric, const Queries& queries, uint32 q,
                   const Neighbor* nearest, const Nearest& truth) {
    uint32 count = 0;
    for (uint32 i = 0; i <= truth.k && count < truth.k; ++i) {
        if (!(nearest[i].distance < std::numeric_limits<double>::infinity())) break;
        if (is_self(queries, q, queries.part, nearest[i].id)) continue;
        const StoredVector row = read_row(reader, number_tid(nearest[i].id));
        if (!row) continue;
        truth.add(q, exact_distance(metric, queries.vectors[q], row));
        ++count;
    }
}

// The exact distances of the first k rows that this part returns.
void add_found(const OpenIndex& open, Snapshot snapshot, RowReader* reader, Metric metric,
               const Queries& queries, uint32 q, const Nearest& found) {
    ScanKeyData order = {};
    order.sk_flags = SK_ORDER_BY;
    order.sk_attno = 1;
    order.sk_strategy = 1;
    order.sk_argument = PointerGetDatum(queries.values[q]);
    IndexScanDesc scan = compat_index_beginscan(open.heap, open.index, snapshot, 0, 1);
    want_rows(scan, found.k, 1);
    index_rescan(scan, nullptr, 0, &order, 1);
    for (uint32 count = 0; count < found.k;) {
        const ItemPointer tid = index_getnext_tid(scan, ForwardScanDirection);
        if (!tid) break;
        if (is_self(queries, q, queries.part, tid_number(*tid))) continue;
        ++count;
        const StoredVector row = read_row(reader, *tid);
        if (row) found.add(q, exact_distance(metric, queries.vectors[q], row));
    }
    rest_row_reader(reader);
    index_endscan(scan);
}

// How many of the found rows are among the true k nearest.
uint32 count_hits(const Nearest& truth, const Nearest& found, uint32 q) {
    constexpr double infinity = std::numeric_limits<double>::infinity();
    const double* mine = truth.distances + Size{q} * truth.k;
    double farthest = -infinity;
    for (uint32 i = 0; i < truth.counts[q]; ++i) farthest = std::max(farthest, mine[i]);
    if (truth.counts[q] < truth.k) farthest = infinity;
    const double* distances = found.distances + Size{q} * found.k;
    // False for NaN.
    return static_cast<uint32>(
        std::count_if(distances, distances + found.counts[q],
                      [farthest](double distance) { return distance <= farthest; }));
}

// Searches this part for all queries, exactly and by its index.
void search_part(const OpenIndex& open, Snapshot snapshot, const Queries& queries,
                 const Nearest& truth, const Nearest& found) {
    const Metric metric = metric_of(open.index);
    const Neighbor* nearest = find_neighbors(open, snapshot, queries, metric, truth.k + 1);
    RowReader* reader = open_row_reader(open.heap, open.index, snapshot);
    for (uint32 q = 0; q < queries.count; ++q) {
        CHECK_FOR_INTERRUPTS();
        add_neighbors(reader, metric, queries, q, nearest + Size{q} * (truth.k + 1), truth);
        add_found(open, snapshot, reader, metric, queries, q, found);
    }
    close_row_reader(reader);
    pfree(const_cast<Neighbor*>(nearest));
}

// Rows that belong into no list say nothing of how well lists are searched.
void keep_rows_of_lists(Queries* queries) {
    queries->vectors = static_cast<VectorView*>(palloc(queries->count * sizeof(VectorView)));
    const uint32 drawn = std::exchange(queries->count, 0);
    for (uint32 q = 0; q < drawn; ++q) {
        const VectorView vector = queries->type.view(queries->values[q]);
        if (kind_of(queries->metric, vector.values, vector.dims) != RowKind::in_lists) continue;
        const uint32 at = queries->count++;
        queries->vectors[at] = vector;
        queries->values[at] = queries->values[q];
        queries->tids[at] = queries->tids[q];
        queries->parts[at] = queries->parts[q];
    }
}

}  // namespace

}  // namespace pgwarp

using namespace pgwarp;

PGWARP_FUNCTION(ivfpq_recall) {
    check_signature(fcinfo, 3, 0);
    const int32 samples = PG_GETARG_INT32(1);
    const int32 k = PG_GETARG_INT32(2);
    if (samples < 1 || samples > 100000)
        ereport(ERROR, (errcode(ERRCODE_INVALID_PARAMETER_VALUE),
                        errmsg("samples must be between 1 and 100000")));
    if (k < 1 || k > 10000)
        ereport(ERROR, (errcode(ERRCODE_INVALID_PARAMETER_VALUE),
                        errmsg("k must be between 1 and 10000")));
    const IndexLeaves parts = find_parts(PG_GETARG_OID(0));
    const QuerySet wanted_set{nullptr, static_cast<uint32>(samples), static_cast<uint32>(k + 1),
                              nullptr};
    Snapshot snapshot = GetActiveSnapshot();

    Queries queries;
    queries.room = static_cast<uint32>(samples);
    queries.count = 0;
    queries.seen = 0;
    queries.values = static_cast<varlena**>(palloc(queries.room * sizeof(varlena*)));
    queries.tids = static_cast<uint64*>(palloc(queries.room * sizeof(uint64)));
    queries.parts = static_cast<int*>(palloc(queries.room * sizeof(int)));
    for (queries.part = 0; queries.part < parts.count; ++queries.part) {
        const OpenIndex open = open_part(parts.leaves[queries.part], AccessShareLock);
        const Size distances = 2 * Size{wanted_set.count} * wanted_set.k * sizeof(double);
        const Size bytes = search_bytes(read_meta(open.index).dims, &wanted_set, 1) + distances;
        if (bytes > static_cast<Size>(maintenance_work_mem) * 1024)
            ereport(ERROR, (errcode(ERRCODE_PROGRAM_LIMIT_EXCEEDED),
                            errmsg("memory required is %zu MB, maintenance_work_mem is %d MB",
                                   bytes / (1024 * 1024) + 1, maintenance_work_mem / 1024),
                            errhint("Ask for fewer samples, or a smaller k.")));
        queries.type = type_of(open.index);
        queries.metric = metric_of(open.index);
        scan_rows(open, snapshot, draw_query, &queries);
        close_index(open);
    }
    if (queries.seen < 2) PG_RETURN_NULL();
    keep_rows_of_lists(&queries);
    if (queries.count == 0) PG_RETURN_NULL();

    const uint32 wanted = static_cast<uint32>(std::min<uint64>(k, queries.seen - 1));
    const Nearest truth = make_nearest(queries.count, wanted);
    const Nearest found = make_nearest(queries.count, wanted);
    for (queries.part = 0; queries.part < parts.count; ++queries.part) {
        const OpenIndex open = open_part(parts.leaves[queries.part], AccessShareLock);
        search_part(open, snapshot, queries, truth, found);
        close_index(open);
    }
    double hits = 0;
    for (uint32 q = 0; q < queries.count; ++q) hits += count_hits(truth, found, q);
    PG_RETURN_FLOAT8(hits / (static_cast<double>(queries.count) * wanted));
}
