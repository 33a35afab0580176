// knn_graph_append: brings a graph up to date after rows of its table were added, changed or
// removed.

#include <algorithm>
#include <limits>

#include "kernels/knn_graph.h"
#include "kernels/workers.h"
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

// Moves rows with whole lists before the others, in a new file. Returns where the others begin.
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

bool compares_all(const GraphSet& set, Size border) {
    constexpr Size least_dims = 32;
    const Size others = set.count - border;
    return others * std::max<Size>(set.dims, least_dims) <= values_to_compare && others <= border;
}

// Edges within the first `border` rows have the right distance.
void load_given_list(const GraphSet& set, const GivenLists& given, Size border, bool others,
                     Size row, uint32 degree, Edge* list) {
    const Edge* before = given.lists + row * given.k;
    std::fill_n(list, degree, Edge{std::numeric_limits<float>::infinity(), no_row});
    const auto is_within = [&](const Edge& edge) { return row < border && edge.row < border; };
    std::copy_if(before, before + given.k, list, is_within);
    for (uint32 i = 0; others && i < given.k; ++i) {
        if (before[i].row == no_row || is_within(before[i])) continue;
        const Edge edge{vector_distance(set, static_cast<uint32>(row), before[i].row),
                        before[i].row};
        add_edges(list, degree, &edge, 1);
    }
}

// The given edges as lists (rows)(degree): with those from and to rows behind the border, or
// without.
Edge* load_given_lists(const GraphJob& job, const GraphSet& set, const GivenLists& given,
                       Size border, bool others, uint32 degree) {
    constexpr Size task_rows = 4096;
    Edge* lists = static_cast<Edge*>(MemoryContextAllocHuge(
        CurrentMemoryContext, std::max<Size>(set.count * degree, 1) * sizeof(Edge)));
    run_graph_kernel([&] {
        Workers workers(job.threads, query_interrupts());
        workers.run((set.count + task_rows - 1) / task_rows, [&](size_t task, int) {
            const Size end = std::min(set.count, (task + 1) * task_rows);
            for (Size row = task * task_rows; row < end; ++row)
                load_given_list(set, given, border, others, row, degree, lists + row * degree);
        });
    });
    return lists;
}

// Compares the rows behind the border with all rows: lists get the nearer ones of them.
void compare_others(const GraphJob& job, const GraphSet& set, Size border, Edge* lists) {
    const uint32 k = job.k;
    const Size others = set.count - border;
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

// A call of knn_graph_append.
struct GraphAppend {
    FunctionCallInfo fcinfo;
    Oid graph;
    Metric metric;
    KeyNames* keys;
    GraphJob job;
    GraphSet set;
    Changes changes;
};

bool names_neighbors(const GraphAppend& append) {
    return !append.fcinfo->args[4].isnull;
}

// `neighbors`: those of the graph.
GraphJob append_job(const GraphAppend& append, uint32 neighbors) {
    const uint32 k = wanted_neighbors(append.fcinfo, 4, neighbors);
    return make_graph_job(append.fcinfo, append.metric, static_cast<int32>(k), {6, 7, 8});
}

GraphRoom room_to_compare(const GraphJob& job) {
    GraphRoom room{job.k, job.k, job.threads};
    room.descends = false;
    return room;
}

void begin_changes(GraphAppend* append) {
    Changes* changes = &append->changes;
    changes->graph = append->graph;
    changes->set = &append->set;
    changes->k = append->job.k;
    changes->in_place = true;
    prepare_changes(changes);
}

// Reads the graph, with as many neighbors as it has where the caller does not say how many.
GivenLists read_lists_to_append(GraphAppend* append, const KeyedRow* sorted) {
    report_graph_stage(GraphStage::edges, 0, 0);
    GivenLists given = read_given_lists(append->job, append->graph, append->set, sorted);
    if (given.neighbors <= append->job.k || names_neighbors(*append)) return given;
    append->job = append_job(*append, given.neighbors);
    free_given_lists(&given);
    return read_given_lists(append->job, append->graph, append->set, sorted);
}

// False: there is no room for what a device, or a descent, needs beside the rows. They are in a
// file then.
bool append_in_memory(GraphAppend* append) {
    GraphSet* set = &append->set;
    report_graph_stage(GraphStage::keys, 0, 0);
    KeyedRow* sorted = sort_by_key(*set);
    GivenLists given = read_lists_to_append(append, sorted);
    GraphJob* job = &append->job;
    const Size border = order_by_whole(&given, set, sorted);
    const Size others = set->count - border;
    const bool compare = compares_all(*set, border);
    const uint32 dims = std::max(set->dims, 1u);
    if (others > 0) {
        if (compare)
            start_builder_for(job,
                              static_cast<double>(others) * static_cast<double>(set->count) * dims);
        else
            start_builder(job, set->count, set->dims, false);
        const GraphRoom room{job->options.degree, job->k, job->threads};
        if (set->count > rows_on_device(*job, dims) ||
            (!compare && set->count > rows_in_memory(room, dims))) {
            end_builder(job);
            free_given_lists(&given);
            pfree(sorted);
            spill_graph_set(set);
            return false;
        }
    }
    Changes* changes = &append->changes;
    begin_changes(append);
    changes->lists = &given;
    changes->sorted = sorted;
    changes->norms = find_norms(*set);
    const uint32 degree = compare ? job->k : job->options.degree;
    Edge* lists = load_given_lists(*job, *set, given, border, !compare, degree);
    const GraphRows rows{set->rows, set->count, set->dims, job->metric};
    if (others > 0 && compare) compare_others(*job, *set, border, lists);
    if (others > 0 && !compare)
        run_graph_kernel([&] { job->maker.builder->append(rows, border, job->options, lists); });
    report_graph_stage(GraphStage::writing, 0, 0);
    remove_gone(changes, *given.gone->object);
    write_new_lists(changes, lists, degree);
    flush_changes(changes);
    if (others > 0) end_builder(job);
    return true;
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
    remove_gone(changes, *find_gone(*changes)->object);
    for (Size part = 0; part < parts.count; ++part) {
        read_found(parts, part);
        write_changes(changes, {parts.begin(part), parts.begin(part) + parts.size(part),
                                parts.results, job.k, reinterpret_cast<WrittenEdge*>(parts.lists)});
    }
    flush_changes(changes);
    close_parts(&parts);
}

void append_in_file(GraphAppend* append) {
    GraphSet* set = &append->set;
    report_graph_stage(GraphStage::edges, 0, 0);
    GivenGraph given = read_given_graph(append->graph, append->keys);
    if (given.neighbors > append->job.k && !names_neighbors(*append))
        append->job = append_job(*append, given.neighbors);
    start_builder(&append->job, set->count, set->dims, false);
    begin_changes(append);
    append->changes.given = &given;
    append_by_parts(append->job, set, &append->changes);
    BufFileClose(set->file);
    end_graph_edges(&given.edges);
    end_builder(&append->job);
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
    KeyNames* keys = names_in_graph(graph);
    GraphAppend append = {fcinfo, graph, metric, keys, {}, {}, {}};
    append.job = append_job(append, first_neighbors(graph, keys));
    TableColumns columns = {table, NameStr(*PG_GETARG_NAME(3)), NameStr(*PG_GETARG_NAME(2))};
    columns.names = keys;
    append.set = read_graph_set(columns, metric, room_to_compare(append.job));
    report_left_out(append.set);
    if (append.set.file || !append_in_memory(&append)) append_in_file(&append);
    const GraphSet& set = append.set;
    const AppendCounts& counts = append.changes.counts;
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
