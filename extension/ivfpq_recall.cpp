// ivfpq_recall: the recall of an index as it is now, with the settings as they are now.
//
// Rows drawn from the table are the queries. One pass over the table finds the true neighbors of
// all of them, then each is searched through the index as a query with LIMIT k would be. A row is
// no neighbor of itself, nor does it take the place of a candidate. A found row counts if it is as
// near as the k-th true neighbor, so rows at equal distance do not make a difference.

#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/executor.h"
#include "kernels/random.h"
#include "extension/guard.h"
#include "extension/ivfpq.h"
#include "extension/ivfpq_functions.h"
#include "extension/ivfpq_lists.h"
#include "extension/ivfpq_page.h"
#include "extension/ivfpq_rows.h"
#include "extension/vector.h"

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

// One pass over the rows a snapshot sees, calling back as an index build does.
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
    Vector** vectors;
    uint64* tids;
};

void draw_query(Relation, ItemPointer tid, Datum* values, bool* nulls, bool, void* state) {
    Queries* queries = static_cast<Queries*>(state);
    if (nulls[0]) return;
    ++queries->seen;
    uint32 slot;
    if (queries->count < queries->room) {
        slot = queries->count++;
        queries->vectors[slot] = nullptr;
    } else {
        const uint64 draw = queries->random.below(queries->seen);
        if (draw >= queries->room) return;
        slot = static_cast<uint32>(draw);
    }
    if (queries->vectors[slot]) pfree(queries->vectors[slot]);
    queries->vectors[slot] = reinterpret_cast<Vector*>(PG_DETOAST_DATUM_COPY(values[0]));
    queries->tids[slot] = tid_number(*tid);
}

// The k + 1 smallest exact distances of every query, sorted; itself included.
struct Truth {
    const Queries* queries;
    Metric metric;
    uint32 kept;
    double* distances;  // (queries)(kept)
    MemoryContext row_context;
};

void compare_row(Relation, ItemPointer tid, Datum* values, bool* nulls, bool, void* state) {
    Truth* truth = static_cast<Truth*>(state);
    if (nulls[0]) return;
    CHECK_FOR_INTERRUPTS();
    MemoryContextReset(truth->row_context);
    const MemoryContext before = MemoryContextSwitchTo(truth->row_context);
    const Vector* row = datum_get_vector(values[0]);
    MemoryContextSwitchTo(before);
    for (uint32 q = 0; q < truth->queries->count; ++q) {
        if (truth->queries->tids[q] == tid_number(*tid)) continue;
        const double distance = exact_distance(truth->metric, truth->queries->vectors[q], row);
        double* nearest = truth->distances + Size{q} * truth->kept;
        if (!(distance < nearest[truth->kept - 1])) continue;
        double* at = std::upper_bound(nearest, nearest + truth->kept - 1, distance);
        std::move_backward(at, nearest + truth->kept - 1, nearest + truth->kept);
        *at = distance;
    }
}

// How many of the first k rows the index gives are among the true k nearest.
uint32 count_hits(const OpenIndex& open, Snapshot snapshot, RowReader* reader, Metric metric,
                  const Vector* query, uint64 self, uint32 k, double farthest) {
    ScanKeyData order = {};
    order.sk_flags = SK_ORDER_BY;
    order.sk_attno = 1;
    order.sk_strategy = 1;
    order.sk_argument = PointerGetDatum(query);
    IndexScanDesc scan = compat_index_beginscan(open.heap, open.index, snapshot, 0, 1);
    want_rows(scan, k, 1);
    index_rescan(scan, nullptr, 0, &order, 1);
    uint32 hits = 0;
    for (uint32 found = 0; found < k;) {
        const ItemPointer tid = index_getnext_tid(scan, ForwardScanDirection);
        if (!tid) break;
        if (tid_number(*tid) == self) continue;
        ++found;
        const Vector* row = read_row(reader, *tid);
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
    const int32 samples = PG_GETARG_INT32(1);
    const int32 k = PG_GETARG_INT32(2);
    if (samples < 1 || samples > 100000)
        ereport(ERROR, (errcode(ERRCODE_INVALID_PARAMETER_VALUE),
                        errmsg("samples must be between 1 and 100000")));
    if (k < 1 || k > 10000)
        ereport(ERROR, (errcode(ERRCODE_INVALID_PARAMETER_VALUE),
                        errmsg("k must be between 1 and 10000")));
    const OpenIndex open = open_index(PG_GETARG_OID(0), AccessShareLock, Purpose::read);
    const Size bytes = static_cast<Size>(samples) *
                       (read_meta(open.index).dims * sizeof(float) + k * sizeof(double));
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
    queries.vectors = static_cast<Vector**>(palloc(queries.room * sizeof(Vector*)));
    queries.tids = static_cast<uint64*>(palloc(queries.room * sizeof(uint64)));
    scan_rows(open, snapshot, draw_query, &queries);
    if (queries.seen < 2) {
        close_index(open);
        PG_RETURN_NULL();
    }

    const uint32 wanted = static_cast<uint32>(std::min<uint64>(k, queries.seen - 1));
    Truth truth{&queries, metric, wanted,
                static_cast<double*>(MemoryContextAllocHuge(
                    CurrentMemoryContext, Size{queries.count} * wanted * sizeof(double))),
                AllocSetContextCreate(CurrentMemoryContext, "ivfpq truth", ALLOCSET_DEFAULT_SIZES)};
    std::fill_n(truth.distances, Size{queries.count} * wanted,
                std::numeric_limits<double>::infinity());
    scan_rows(open, snapshot, compare_row, &truth);

    RowReader* reader = open_row_reader(open.heap, open.index, snapshot);
    double hits = 0;
    for (uint32 q = 0; q < queries.count; ++q) {
        CHECK_FOR_INTERRUPTS();
        hits += count_hits(open, snapshot, reader, metric, queries.vectors[q], queries.tids[q],
                           wanted, truth.distances[Size{q} * wanted + wanted - 1]);
    }
    close_row_reader(reader);
    close_index(open);
    PG_RETURN_FLOAT8(hits / (static_cast<double>(queries.count) * wanted));
}
