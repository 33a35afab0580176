// A VACUUM that trains an index can be cancelled, or the server can crash, after the metapage names
// the model and before it has the curve. A later VACUUM then measures the curve. It does so again
// when many rows have changed: lists have grown, or rows differ from those that it was measured
// with. Its queries are rows drawn through the index's entries; a pass over the table finds their
// true neighbors. One WAL record puts the curve on the metapage; before that nothing changes, so an
// interrupted measurement just starts over.

#include <algorithm>
#include <utility>

#include "kernels/executor.h"
#include "extension/guard.h"
#include "extension/index/column.h"
#include "extension/index/format.h"
#include "extension/index/buffers.h"
#include "extension/curve/curve.h"
#include "extension/create/encode.h"
#include "extension/index/lists.h"
#include "extension/create/measure.h"
#include "extension/index/model.h"
#include "extension/index/page_changes.h"
#include "extension/index/place.h"
#include "extension/scan/rows.h"
#include "extension/create/train.h"
#include "extension/create/vacuum_rows.h"

extern "C" {
#include "access/tableam.h"
#include "catalog/index.h"
#include "commands/vacuum.h"
#include "miscadmin.h"
#include "utils/memutils.h"
#include "utils/snapmgr.h"
#include "utils/timestamp.h"
}

namespace pgwarp {

namespace {

// Fewer would measure too inaccurately; the next VACUUM may see more rows.
constexpr uint32 min_queries = 64;
// Draw more entries than queries: some of their rows are not visible.
constexpr uint32 entries_a_query = 4;

bool must_wait(Relation index) {
    const char* reason = reason_to_wait(index, {.predicate = true, .attributes = false});
    if (!reason) return false;
    ereport(LOG,
            (errmsg("recall of index \"%s\" is not measured yet", RelationGetRelationName(index)),
             errdetail_internal("%s", reason),
             errhint("Autovacuum will go on, or VACUUM (PARALLEL 0).")));
    return true;
}

struct Draw {
    Sample entries;  // TIDs only
    Random* random;
};

void draw_entries(void* state, uint32, Page page, const EntryLayout& layout) {
    Draw* draw = static_cast<Draw*>(state);
    const ItemPointerData* tids = page_tids(page, layout);
    for (uint32 i = 0; i < page_tail(page)->count; ++i) {
        const uint32 slot = draw_slot(&draw->entries, draw->random);
        if (slot < draw->entries.room) draw->entries.tids[slot] = tid_number(tids[i]);
    }
}

Sample draw_queries(Relation heap, Relation index, const MetaPage& meta,
                    BufferAccessStrategy ring) {
    Random random(static_cast<uint64>(meta.seed));
    Sample queries = new_sample(meta.dims, most_queries(meta.curve_rows, meta.dims));
    const Sample entries =
        draw_from_lists(index, meta, ring, entries_a_query * queries.room, &random);
    uint64* tids = entries.tids;
    const uint32 drawn = entries.count;
    Snapshot snapshot = fresh_snapshot();
    RowReader* reader = open_row_reader(heap, index, snapshot);
    for (uint32 i = 0; i < drawn && queries.count < queries.room; ++i) {
        compat_vacuum_delay();
        std::swap(tids[i], tids[i + random.below(drawn - i)]);
        if (!read_row(reader, number_tid(tids[i]))) continue;
        const VectorView row = floats_of_row(reader);
        if (row_form(meta.metric, row.values, meta.dims,
                     queries.rows + Size{queries.count} * meta.dims) != RowKind::in_lists)
            continue;
        queries.tids[queries.count++] = tids[i];
    }
    close_row_reader(reader);
    UnregisterSnapshot(snapshot);
    return queries;
}

// Rows of the table, compared with all queries in batches.
struct Comparison {
    VectorType type;
    const Sample* queries;
    Metric metric;
    Executor* executor;
    uint32 batch;
    uint32 count;
    float* rows;   // (batch)(dims)
    uint64* tids;  // (batch)
    Neighbor* neighbors;
    MemoryContext row_context;
};

void compare_batch(Comparison* comparison) {
    const Sample& queries = *comparison->queries;
    compat_vacuum_delay();
    // Not interruptible: the search adds to the neighbors found before, so it cannot be repeated.
    guarded([&] {
        add_neighbors(comparison->executor,
                      {queries.rows, queries.count, comparison->rows, comparison->count,
                       comparison->tids, queries.dims, comparison->metric},
                      comparison->neighbors);
    });
    comparison->count = 0;
}

void compare_row(Relation, ItemPointer tid, Datum* values, bool* nulls, bool, void* state) {
    if (nulls[0]) return;
    Comparison* comparison = static_cast<Comparison*>(state);
    const uint32 dims = comparison->queries->dims;
    MemoryContextReset(comparison->row_context);
    const MemoryContext before = MemoryContextSwitchTo(comparison->row_context);
    const VectorView row = comparison->type.view(values[0]);
    MemoryContextSwitchTo(before);
    if (row_form(comparison->metric, row.values, dims,
                 comparison->rows + Size{comparison->count} * dims) != RowKind::in_lists)
        return;
    comparison->tids[comparison->count] = tid_number(*tid);
    if (++comparison->count == comparison->batch) compare_batch(comparison);
}

// The true neighbors of all queries, kept_neighbors(queries), including each query itself.
const Neighbor* find_neighbors(Relation heap, Relation index, Metric metric,
                               const Sample& queries) {
    Comparison comparison = {};
    comparison.type = type_of(index);
    comparison.queries = &queries;
    comparison.metric = metric;
    comparison.batch = 1024;
    Owned<Executor>* executor = owned_by<Executor>(CurrentMemoryContext);
    guarded([&] { executor->object = make_cpu_executor(1, {}).release(); });
    comparison.executor = executor->object;
    const auto alloc = [](Size bytes) {
        return MemoryContextAllocHuge(CurrentMemoryContext, bytes);
    };
    comparison.rows =
        static_cast<float*>(alloc(Size{comparison.batch} * queries.dims * sizeof(float)));
    comparison.tids = static_cast<uint64*>(alloc(comparison.batch * sizeof(uint64)));
    comparison.neighbors =
        static_cast<Neighbor*>(alloc(kept_neighbors(queries.count) * sizeof(Neighbor)));
    clear_neighbors(queries.count, comparison.neighbors);
    comparison.row_context =
        AllocSetContextCreate(CurrentMemoryContext, "ivfpq row", ALLOCSET_DEFAULT_SIZES);

    Snapshot snapshot = fresh_snapshot();
    IndexInfo* info = BuildIndexInfo(index);
    info->ii_Concurrent = true;
    TableScanDesc scan = table_beginscan_strat(heap, snapshot, 0, nullptr, true, true);
    table_index_build_scan(heap, index, info, true, false, compare_row, &comparison, scan);
    UnregisterSnapshot(snapshot);
    if (comparison.count > 0) compare_batch(&comparison);
    return comparison.neighbors;
}

}  // namespace

// As many products as one thread makes in two or three seconds, but enough queries to measure with:
// in a large table these alone take longer. Effort is chosen by what is surely found, so with fewer
// queries it is greater.
uint32 most_queries(uint64 rows, uint32 dims) {
    constexpr double products = 0x1p34;
    constexpr uint32 enough = 256;
    const double of_query = static_cast<double>(rows) * dims;
    const double room = std::max<double>(enough, products / std::max(of_query, 1.0));
    return static_cast<uint32>(std::min<double>(curve_query_room(dims), room));
}

Sample draw_from_lists(Relation index, const MetaPage& meta, BufferAccessStrategy ring, uint32 room,
                       Random* random) {
    Draw draw{{}, random};
    draw.entries.room = room;
    draw.entries.tids =
        static_cast<uint64*>(MemoryContextAllocHuge(CurrentMemoryContext, room * sizeof(uint64)));
    const ListVisitor visitor{draw_entries, &draw};
    for (uint32 list = 0; list < meta.lists; ++list) {
        compat_vacuum_delay();
        read_through(ring, [&] { walk_lists(index, meta, &list, 1, visitor); });
    }
    return draw.entries;
}

bool should_measure(Relation index, const MetaPage& meta, BufferAccessStrategy ring) {
    if (!was_measured(meta)) return true;
    if (meta.curve_source != CurveSource::rows) return false;
    constexpr double share = 0.2;
    double entries = 0;
    read_through(ring, [&] { entries = static_cast<double>(count_entries(index, meta)); });
    const auto measured = static_cast<double>(measured_rows(meta));
    const auto removed = static_cast<double>(meta.removed_rows);
    const double inserted = std::max(entries + removed - measured, 0.0);
    return inserted + removed > share * measured;
}

void measure_in_place(Relation index, BufferAccessStrategy ring) {
    if (must_wait(index)) return;
    VacuumRows rows = begin_vacuum_rows(index);
    MetaPage meta = read_meta(index);
    meta.curve_rows = count_entries(index, meta);
    meta.removed_rows = 0;
    if (meta.trained_nearest == 0 && was_measured(meta)) meta.trained_nearest = meta.usual.nearest;
    const Sample queries = draw_queries(rows.heap, index, meta, ring);
    if (queries.count >= min_queries) {
        const Neighbor* neighbors = find_neighbors(rows.heap, index, meta.metric, queries);
        const EncodeInput input{read_model(index, meta), queries.rows,           queries.count,
                                type_of(index),          copy_attributes(index), {}};
        const CurveQuery* curve_queries = make_curve_queries(input, queries.tids, neighbors, 1);
        meta.largest_norm = largest_norm_of(meta, curve_queries, queries.count);
        set_curve(&meta, measure_curve(index, meta, curve_queries, queries.count));
        meta.forget_learned();
        meta.curve_source = CurveSource::rows;
        meta.curve_at = GetCurrentTimestamp();
        write_training(index, meta);
        ereport(LOG, (errmsg("recall of index \"%s\" was measured with %u queries",
                             RelationGetRelationName(index), queries.count)));
    }
    end_vacuum_rows(&rows);
}

}  // namespace pgwarp
