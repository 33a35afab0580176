// ivfpq_recall: the recall of an index as it is now, with the settings as they are now.
//
// Rows drawn from the table are the queries. One pass over the table finds the true neighbors of
// all of them, then each is searched through the index as a query with LIMIT k would be. A row is
// no neighbor of itself, and the scan gets one more candidate to make up for it. A found row counts
// if it is as near as the k-th true neighbor, so that ties do not lower the recall.

#include <algorithm>
#include <limits>

#include "kernels/random.h"
#include "extension/build/true_neighbors.h"
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
    varlena** values;  // (room), detoasted
    uint64* tids;
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
    return nearest;
}

// The exact distance of the k-th true neighbor; infinity where there are fewer.
double farthest_of(RowReader* reader, Metric metric, const VectorView& query, uint64 self,
                   const Neighbor* nearest, uint32 k) {
    constexpr double infinity = std::numeric_limits<double>::infinity();
    double farthest = -infinity;
    uint32 count = 0;
    for (uint32 i = 0; i <= k && count < k; ++i) {
        if (!(nearest[i].distance < infinity)) break;
        if (nearest[i].id == self) continue;
        const StoredVector row = read_row(reader, number_tid(nearest[i].id));
        if (!row) continue;
        farthest = std::max(farthest, exact_distance(metric, query, row));
        ++count;
    }
    return count == k ? farthest : infinity;
}

// How many of the first k rows that the index returns are among the true k nearest.
uint32 count_hits(const OpenIndex& open, Snapshot snapshot, RowReader* reader, Metric metric,
                  const Queries& queries, uint32 q, uint32 k, double farthest) {
    const VectorView& query = queries.vectors[q];
    ScanKeyData order = {};
    order.sk_flags = SK_ORDER_BY;
    order.sk_attno = 1;
    order.sk_strategy = 1;
    order.sk_argument = PointerGetDatum(queries.values[q]);
    IndexScanDesc scan = compat_index_beginscan(open.heap, open.index, snapshot, 0, 1);
    want_rows(scan, k, 1);
    index_rescan(scan, nullptr, 0, &order, 1);
    uint32 hits = 0;
    for (uint32 found = 0; found < k;) {
        const ItemPointer tid = index_getnext_tid(scan, ForwardScanDirection);
        if (!tid) break;
        if (tid_number(*tid) == queries.tids[q]) continue;
        ++found;
        const StoredVector row = read_row(reader, *tid);
        if (row && exact_distance(metric, query, row) <= farthest) ++hits;
    }
    rest_row_reader(reader);
    index_endscan(scan);
    return hits;
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
    const OpenIndex open = open_index(PG_GETARG_OID(0), AccessShareLock, Purpose::read);
    const QuerySet wanted_set{nullptr, static_cast<uint32>(samples), static_cast<uint32>(k + 1),
                              nullptr};
    const Size bytes = search_bytes(read_meta(open.index).dims, &wanted_set, 1);
    if (bytes > static_cast<Size>(maintenance_work_mem) * 1024)
        ereport(ERROR, (errcode(ERRCODE_PROGRAM_LIMIT_EXCEEDED),
                        errmsg("memory required is %zu MB, maintenance_work_mem is %d MB",
                               bytes / (1024 * 1024) + 1, maintenance_work_mem / 1024),
                        errhint("Ask for fewer samples, or a smaller k.")));
    Snapshot snapshot = GetActiveSnapshot();
    const Metric metric = metric_of(open.index);

    Queries queries;
    queries.room = static_cast<uint32>(samples);
    queries.count = 0;
    queries.seen = 0;
    queries.type = type_of(open.index);
    queries.values = static_cast<varlena**>(palloc(queries.room * sizeof(varlena*)));
    queries.tids = static_cast<uint64*>(palloc(queries.room * sizeof(uint64)));
    scan_rows(open, snapshot, draw_query, &queries);
    if (queries.seen < 2) {
        close_index(open);
        PG_RETURN_NULL();
    }
    queries.vectors = static_cast<VectorView*>(palloc(queries.count * sizeof(VectorView)));
    for (uint32 q = 0; q < queries.count; ++q)
        queries.vectors[q] = queries.type.view(queries.values[q]);

    const uint32 wanted = static_cast<uint32>(std::min<uint64>(k, queries.seen - 1));
    const Neighbor* nearest = find_neighbors(open, snapshot, queries, metric, wanted + 1);

    RowReader* reader = open_row_reader(open.heap, open.index, snapshot);
    double hits = 0;
    for (uint32 q = 0; q < queries.count; ++q) {
        CHECK_FOR_INTERRUPTS();
        const double farthest = farthest_of(reader, metric, queries.vectors[q], queries.tids[q],
                                            nearest + Size{q} * (wanted + 1), wanted);
        hits += count_hits(open, snapshot, reader, metric, queries, q, wanted, farthest);
    }
    close_row_reader(reader);
    close_index(open);
    PG_RETURN_FLOAT8(hits / (static_cast<double>(queries.count) * wanted));
}
