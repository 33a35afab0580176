// knn_graph_append: brings a graph up to date after rows of its table were added, changed or
// removed.

#include <algorithm>
#include <utility>

#include "kernels/knn_graph.h"
#include "extension/graph/changes.h"
#include "extension/graph/functions.h"
#include "extension/graph/given.h"
#include "extension/graph/metric.h"
#include "extension/graph/parts.h"
#include "extension/graph/progress.h"
#include "extension/graph/table.h"
#include "extension/util/signature.h"

extern "C" {
#include "access/htup_details.h"
#include "catalog/pg_type.h"
#include "executor/spi.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"
#include "utils/rls.h"
#include "utils/snapmgr.h"
}

namespace pgwarp {
namespace {

// Moves rows with whole lists before the others, which are searched for as new rows are. Returns
// where the others begin. `moved`: (count), new row numbers by the old ones.
Size order_set(GraphSet* set, bool* whole, uint32* moved) {
    for (Size row = 0; row < set->count; ++row) moved[row] = static_cast<uint32>(row);
    Size border = 0, end = set->count;
    while (true) {
        while (border < end && whole[border]) ++border;
        while (border < end && !whole[end - 1]) --end;
        if (border == end) return border;
        std::swap(whole[border], whole[end - 1]);
        std::swap(moved[border], moved[end - 1]);
        std::swap(set->keys[border], set->keys[end - 1]);
        std::swap_ranges(set->rows + border * set->dims, set->rows + (border + 1) * set->dims,
                         set->rows + (end - 1) * set->dims);
    }
}

// The same for rows in a file, which are copied to a new one.
Size order_file(GraphSet* set, const bool* whole) {
    constexpr Size block_rows = 1024;
    BufFile* file = BufFileCreateTemp(false);
    int64* keys = static_cast<int64*>(MemoryContextAllocHuge(
        CurrentMemoryContext, std::max<Size>(set->count, 1) * sizeof(int64)));
    const Size row_bytes = set->dims * sizeof(float);
    float* block =
        static_cast<float*>(MemoryContextAllocHuge(CurrentMemoryContext, block_rows * row_bytes));
    Size to = 0, border = 0;
    for (const bool wanted : {true, false}) {
        for (Size first = 0; first < set->count; first += block_rows) {
            const Size count = std::min(block_rows, set->count - first);
            read_spilled(*set, first, count, block);
            for (Size i = 0; i < count; ++i) {
                if (whole[first + i] != wanted) continue;
                keys[to++] = set->keys[first + i];
                compat_write_temporary(file, block + i * set->dims, row_bytes);
            }
        }
        if (wanted) border = to;
    }
    pfree(block);
    BufFileClose(set->file);
    pfree(set->keys);
    set->file = file;
    set->keys = keys;
    set->pieces[0] = {0, 0, 0, set->count};
    set->piece_count = 1;
    return border;
}

// Rows without whole lists are compared with all rows, while that takes less than a descent: for
// each row of the table, this many values of others are read. Measured: with 32 dimensions, 1,000
// rows among 100,000 take 0.15 s, and a descent over all of them 10 s; with 784, a descent over
// 60,000 takes as long as 1,000 to 2,000 rows do.
constexpr Size values_to_compare = Size{1} << 20;

bool compares_all(const GivenGraph& given, const GraphSet& set, Size border, uint32 k) {
    constexpr Size least_dims = 32;
    const Size others = set.count - border;
    return others * std::max<Size>(set.dims, least_dims) <= values_to_compare && others <= border &&
           given.neighbors == k;
}

WrittenEdge* alloc_written(Size rows, uint32 k) {
    return static_cast<WrittenEdge*>(MemoryContextAllocHuge(
        CurrentMemoryContext, std::max<Size>(rows * k, 1) * sizeof(WrittenEdge)));
}

// Compares the rows behind the border with all rows. Lists of other rows are of the graph, and get
// the nearer ones of them.
void append_compared(const GraphJob& job, const GraphSet& set, Size border, FoundEdge* found,
                     Changes* changes) {
    const uint32 k = job.k;
    Edge* lists = alloc_lists(set.count, k);
    load_given(*changes->given, set, changes->sorted, 0, border, k, lists, found);
    const Size others = set.count - border;
    if (others > 0) {
        const GraphRows rows{set.rows, set.count, set.dims, job.metric};
        const GraphRows behind{set.rows + border * set.dims, others, set.dims, job.metric};
        Edge* among = alloc_lists(others, k);
        run_graph_kernel([&] {
            job.maker.builder->exact_merge(rows, border, k, lists);
            job.maker.builder->exact(behind, k, among);
        });
        for (Size i = 0; i < others * k; ++i)
            if (among[i].row != no_row) among[i].row += static_cast<uint32>(border);
        for (Size i = 0; i < others; ++i) add_edges(lists + (border + i) * k, k, among + i * k, k);
        pfree(among);
    }
    report_graph_stage(GraphStage::writing, 0, 0);
    remove_gone(changes);
    write_changes(changes, {0, set.count, lists, k, alloc_written(set.count, k)});
    flush_changes(changes);
}

void append_in_memory(const GraphJob& job, GraphSet* set, Changes* changes) {
    report_graph_stage(GraphStage::keys, 0, 0);
    const GivenGraph& given = *changes->given;
    KeyedRow* before = sort_by_key(*set);
    FoundEdge* found = find_edges(given, *set, before, job.threads);
    bool* whole = find_whole_rows(given, *set, before, job.k, found);
    pfree(before);
    uint32* moved = static_cast<uint32*>(MemoryContextAllocHuge(
        CurrentMemoryContext, std::max<Size>(set->count, 1) * sizeof(uint32)));
    const Size border = order_set(set, whole, moved);
    if (found) move_found(found, given.edges.count, moved);
    pfree(moved);
    pfree(whole);
    changes->sorted = sort_by_key(*set);
    changes->norms = find_norms(*set);
    if (compares_all(given, *set, border, job.k))
        return append_compared(job, *set, border, found, changes);
    const uint32 degree = job.options.degree;
    Edge* lists = alloc_lists(set->count, degree);
    load_given(given, *set, changes->sorted, 0, set->count, degree, lists, found);
    if (found) pfree(found);
    const GraphRows rows{set->rows, set->count, set->dims, job.metric};
    run_graph_kernel([&] { job.maker.builder->append(rows, border, job.options, lists); });
    report_graph_stage(GraphStage::writing, 0, 0);
    remove_gone(changes);
    write_changes(changes, {0, set->count, lists, degree, alloc_written(set->count, job.k)});
    flush_changes(changes);
}

// Parts of rows with whole lists are merged with parts of the other rows, and these with each
// other.
void append_by_parts(const GraphJob& job, GraphSet* set, Changes* changes) {
    report_graph_stage(GraphStage::keys, 0, 0);
    KeyedRow* before = sort_by_key(*set);
    Parts old = open_parts(job, *set, false, 0);
    bool* whole = find_whole_by_parts(old, *changes->given, before);
    close_parts(&old);
    pfree(before);
    const Size border = order_file(set, whole);
    pfree(whole);
    changes->sorted = sort_by_key(*set);
    changes->norms = find_norms(*set);
    Parts parts = open_parts(job, *set, false, border);
    Size middle = 0;
    while (middle < parts.count && parts.begin(middle) < border) ++middle;
    const Size others = parts.count - middle;
    const Size among = others * (others - std::min<Size>(others, 1)) / 2;
    expect_parts(&parts, parts.count + middle * others + among);
    for (Size part = 0; part < parts.count; ++part) build_part(&parts, part);
    finish_parts(&parts);
    add_given(parts, {changes->given, changes->sorted, 0, parts.count, 0, set->count});
    for (Size second = middle; second < parts.count; ++second)
        for (Size first = 0; first < second; ++first) merge_parts(&parts, first, second);
    finish_parts(&parts);
    report_graph_stage(GraphStage::writing, 0, 0);
    remove_gone(changes);
    for (Size part = 0; part < parts.count; ++part) {
        read_found(parts, part);
        write_changes(changes, {parts.begin(part), parts.begin(part) + parts.size(part),
                                parts.results, job.k, reinterpret_cast<WrittenEdge*>(parts.lists)});
    }
    flush_changes(changes);
    close_parts(&parts);
}

// Excludes other writers, not readers. LOCK TABLE checks the caller's rights.
void lock_graph(Oid graph) {
    if (!get_rel_name(graph))
        ereport(ERROR, (errcode(ERRCODE_UNDEFINED_TABLE),
                        errmsg("relation with OID %u does not exist", graph)));
    const char* query =
        psprintf("LOCK TABLE %s IN SHARE ROW EXCLUSIVE MODE", qualified_name(graph));
    if (SPI_execute(query, false, 0) != SPI_OK_UTILITY) elog(ERROR, "could not lock the graph");
}

}  // namespace
}  // namespace pgwarp

using namespace pgwarp;

PGWARP_FUNCTION(pgwarp_knn_graph_append) {
    check_signature(fcinfo, 9, 3);
    constexpr const char* names[] = {"graph", "table", "key", "vector_column"};
    refuse_null_arguments(fcinfo, names, lengthof(names));
    if (PG_ARGISNULL(5) || PG_ARGISNULL(8))
        ereport(ERROR, (errcode(ERRCODE_NULL_VALUE_NOT_ALLOWED),
                        errmsg("%s must not be null", PG_ARGISNULL(5) ? "metric" : "seed")));
    const Oid graph = PG_GETARG_OID(0), table = PG_GETARG_OID(1);
    const Metric metric = graph_metric_called(text_argument(fcinfo, 5));
    // A row that a policy hides would count as gone, and its edges be deleted for all users.
    if (check_enable_rls(table, InvalidOid, true) == RLS_ENABLED)
        ereport(ERROR, (errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
                        errmsg("knn_graph_append wants to see all rows of table \"%s\"",
                               get_rel_name(table)),
                        errdetail("Policies of row security hide some from you.")));
    TupleDesc descriptor;
    if (get_call_result_type(fcinfo, nullptr, &descriptor) != TYPEFUNC_COMPOSITE)
        elog(ERROR, "return type must be a row type");
    descriptor = BlessTupleDesc(descriptor);

    const MemoryContext context = CurrentMemoryContext;
    if (SPI_connect() != SPI_OK_CONNECT) elog(ERROR, "SPI_connect failed");
    lock_graph(graph);
    // A new snapshot, which sees what was committed while this backend waited for the lock.
    PushActiveSnapshot(GetTransactionSnapshot());
    begin_graph_progress(table);
    report_graph_stage(GraphStage::edges, 0, 0);
    KeyNames* keys = names_in_graph(graph);
    GivenGraph given = read_given_graph(graph, keys);
    const uint32 k = wanted_neighbors(fcinfo, 4, given.neighbors);
    GraphJob job = make_graph_job(fcinfo, metric, static_cast<int32>(k), {6, 7, 8});
    TableColumns columns = {table, NameStr(*PG_GETARG_NAME(3)), NameStr(*PG_GETARG_NAME(2))};
    columns.names = keys;
    GraphSet set = read_graph_set(columns, metric, {job.options.degree, job.k, job.threads});
    report_left_out(set);
    start_builder(&job, set.count, set.dims, false);
    if (!set.file && set.count > rows_on_device(job, std::max(set.dims, 1u))) spill_graph_set(&set);
    Changes changes = {};
    changes.graph = graph;
    changes.set = &set;
    changes.given = &given;
    changes.k = job.k;
    prepare_changes(&changes);
    if (set.file) {
        append_by_parts(job, &set, &changes);
        BufFileClose(set.file);
    } else {
        append_in_memory(job, &set, &changes);
    }
    end_builder(&job);
    end_graph_edges(&given.edges);
    const AppendCounts& counts = changes.counts;
    report_graph_times(table, set.count);
    end_graph_progress();
    PopActiveSnapshot();
    SPI_finish();
    MemoryContextSwitchTo(context);
    Datum values[3] = {Int64GetDatum(counts.added), Int64GetDatum(counts.changed),
                       Int64GetDatum(counts.removed)};
    bool nulls[3] = {};
    return HeapTupleGetDatum(heap_form_tuple(descriptor, values, nulls));
}
