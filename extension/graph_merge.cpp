// knn_graph_merge: two graphs of disjoint sets into one. knn_graph_append: a graph after rows were
// added to its table, and removed from it.

#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/distance.h"
#include "extension/graph_functions.h"
#include "extension/graph_given.h"
#include "extension/graph_metric.h"
#include "extension/graph_parts.h"
#include "extension/graph_progress.h"
#include "extension/graph_table.h"

extern "C" {
#include "access/htup_details.h"
#include "catalog/pg_type.h"
#include "executor/spi.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"
#include "utils/snapmgr.h"
#include "utils/rls.h"
}

namespace pgwarp {

namespace {

// What both have, but for one without edges.
uint32 common_neighbors(const GivenGraph& a, const GivenGraph& b) {
    if (a.edges.count == 0 || b.edges.count == 0) return std::max(a.neighbors, b.neighbors);
    return std::min(a.neighbors, b.neighbors);
}

uint32 wanted_neighbors(FunctionCallInfo fcinfo, int number, uint32 otherwise) {
    const int32 k = PG_ARGISNULL(number) ? static_cast<int32>(std::max(otherwise, 1u))
                                         : PG_GETARG_INT32(number);
    check_neighbors(k);
    return static_cast<uint32>(k);
}

void check_disjoint(const GraphSet& set, const KeyedRow* sorted) {
    for (Size i = 0; i + 1 < set.count; ++i)
        if (sorted[i].key == sorted[i + 1].key)
            ereport(ERROR,
                    (errcode(ERRCODE_UNIQUE_VIOLATION),
                     errmsg("key %lld is in both tables", static_cast<long long>(sorted[i].key)),
                     errhint("Graphs that are merged are of sets without common rows. For "
                             "rows added to one table there is knn_graph_append().")));
}

}  // namespace

}  // namespace pgwarp

using namespace pgwarp;

PGWARP_FUNCTION(pgwarp_knn_graph_merge) {
    constexpr const char* names[] = {"first_graph",  "first_table", "second_graph",
                                     "second_table", "key",         "vector_column"};
    refuse_null_arguments(fcinfo, names, lengthof(names));
    if (PG_ARGISNULL(7) || PG_ARGISNULL(10))
        ereport(ERROR, (errcode(ERRCODE_NULL_VALUE_NOT_ALLOWED),
                        errmsg("%s must not be null", PG_ARGISNULL(7) ? "metric" : "seed")));
    const GraphMetric metric = graph_metric_called(text_argument(fcinfo, 7));
    compat_init_materialized(fcinfo);
    const Oid graphs[] = {PG_GETARG_OID(0), PG_GETARG_OID(2)};
    const Oid tables[] = {PG_GETARG_OID(1), PG_GETARG_OID(3)};
    begin_graph_progress(tables[0]);
    report_graph_stage(GraphStage::edges, 0, 0);
    GivenGraph given[] = {read_given_graph(graphs[0]), read_given_graph(graphs[1])};
    const uint32 k = wanted_neighbors(fcinfo, 6, common_neighbors(given[0], given[1]));
    for (const GivenGraph& graph : given)
        if (graph.edges.count > 0 && k > graph.neighbors)
            ereport(ERROR, (errcode(ERRCODE_INVALID_PARAMETER_VALUE),
                            errmsg("k cannot be greater than that of the graphs"),
                            errdetail("k is %u, graph \"%s\" has %u neighbors of a row.", k,
                                      get_rel_name(graph.graph), graph.neighbors)));
    GraphJob job = make_graph_job(fcinfo, metric, static_cast<int32>(k), {8, 9, 10});
    const GraphRoom room{job.options.degree, job.k, job.threads};
    const char* key = NameStr(*PG_GETARG_NAME(4));
    const char* vector_column = NameStr(*PG_GETARG_NAME(5));
    GraphSet set = read_graph_set({tables[0], vector_column, key}, metric, room, Beyond::spill);
    GraphSet second = read_graph_set({tables[1], vector_column, key}, metric, room, Beyond::spill);
    const Size border = set.count;
    if (second.dims != set.dims && border > 0 && second.count > 0)
        ereport(ERROR, (errcode(ERRCODE_DATA_EXCEPTION),
                        errmsg("different vector dimensions %u and %u", set.dims, second.dims)));
    set.dims = border > 0 ? set.dims : second.dims;
    const Size count = border + second.count;
    const bool fits =
        !set.file && !second.file && count <= rows_in_memory(room, std::max(set.dims, 1u));
    start_builder(&job, count, set.dims, false);
    if (fits && count <= rows_on_device(job, std::max(set.dims, 1u)))
        add_graph_set(&set, second);
    else
        join_in_file(&set, &second);
    report_left_out(set);
    report_graph_stage(GraphStage::keys, 0, 0);
    const KeyedRow* sorted = sort_by_key(set);
    check_disjoint(set, sorted);
    EdgeRows to{open_edge_writer(reinterpret_cast<ReturnSetInfo*>(fcinfo->resultinfo)), &set};
    if (set.file) {
        merge_by_parts(job, set, border, given, sorted, rows_sink(&to));
        BufFileClose(set.file);
    } else {
        const uint32 degree = job.options.degree;
        Edge* lists = alloc_lists(set.count, degree);
        load_given(given[0], set, sorted, 0, border, degree, lists);
        load_given(given[1], set, sorted, border, set.count, degree, lists);
        const GraphRows rows{set.rows, set.count, set.dims, metric};
        run_graph_kernel([&] { job.maker.builder->merge(rows, border, job.options, lists); });
        put_lists(job, lists, set.count, degree, rows_sink(&to));
    }
    end_builder(&job);
    for (GivenGraph& graph : given) end_graph_edges(&graph.edges);
    tell_graph_times(tables[0], set.count);
    end_graph_progress();
    return static_cast<Datum>(0);
}

namespace pgwarp {
namespace {

// Keys whose lists in the table are not, or no longer, what they should be.
struct Changes {
    Oid graph;
    const GraphSet* set;
    const Edge* lists;
    uint32 degree;
    uint32 k;

    // Some at a time, as arrays.
    static constexpr int at_once = 1000;
    Datum keys[at_once];
    int key_count;
    Datum* columns[4];  // (at_once * k) each
    int edge_count;
    SPIPlanPtr remove;
    SPIPlanPtr add;
};

Datum array_of(Datum* values, int count, Oid type) {
    const bool wide = type == INT8OID;
    return PointerGetDatum(construct_array(values, count, type, wide ? 8 : 4,
                                           wide ? FLOAT8PASSBYVAL : true,
                                           wide ? TYPALIGN_DOUBLE : TYPALIGN_INT));
}

SPIPlanPtr prepare(const char* query, int arguments, Oid* types) {
    SPIPlanPtr plan = SPI_prepare(query, arguments, types);
    if (!plan) elog(ERROR, "SPI_prepare failed: %s", SPI_result_code_string(SPI_result));
    return plan;
}

void prepare_changes(Changes* changes) {
    const char* name = qualified_name(changes->graph);
    Oid types[] = {INT8ARRAYOID, INT4ARRAYOID, INT8ARRAYOID, FLOAT4ARRAYOID};
    changes->remove = prepare(
        psprintf("DELETE FROM %s WHERE src OPERATOR(pg_catalog.=) ANY ($1)", name), 1, types);
    changes->add =
        prepare(psprintf("INSERT INTO %s (src, rank, dst, distance) "
                         "SELECT * FROM ROWS FROM (pg_catalog.unnest($1), pg_catalog.unnest($2), "
                         "pg_catalog.unnest($3), pg_catalog.unnest($4))",
                         name),
                4, types);
    for (Datum*& column : changes->columns)
        column = static_cast<Datum*>(palloc(sizeof(Datum) * Changes::at_once * changes->k));
}

void flush_changes(Changes* changes) {
    if (changes->key_count == 0) return;
    CHECK_FOR_INTERRUPTS();
    Datum values[4] = {array_of(changes->keys, changes->key_count, INT8OID)};
    if (SPI_execute_plan(changes->remove, values, nullptr, false, 0) != SPI_OK_DELETE)
        elog(ERROR, "could not remove edges");
    pfree(DatumGetPointer(values[0]));
    const Oid types[] = {INT8OID, INT4OID, INT8OID, FLOAT4OID};
    for (int c = 0; c < 4; ++c)
        values[c] = array_of(changes->columns[c], changes->edge_count, types[c]);
    if (SPI_execute_plan(changes->add, values, nullptr, false, 0) != SPI_OK_INSERT)
        elog(ERROR, "could not add edges");
    for (const Datum value : values) pfree(DatumGetPointer(value));
    changes->key_count = changes->edge_count = 0;
}

// A key that is gone has no row and no list.
void change_list(Changes* changes, int64 key, uint32 row) {
    if (changes->key_count == Changes::at_once) flush_changes(changes);
    changes->keys[changes->key_count++] = Int64GetDatum(key);
    if (row == no_row) return;
    const Edge* list = changes->lists + Size{row} * changes->degree;
    for (uint32 i = 0; i < changes->k && list[i].row != no_row; ++i) {
        const int at = changes->edge_count++;
        changes->columns[0][at] = Int64GetDatum(key);
        changes->columns[1][at] = Int32GetDatum(static_cast<int32>(i) + 1);
        changes->columns[2][at] = Int64GetDatum(changes->set->keys[list[i].row]);
        changes->columns[3][at] =
            Float4GetDatum(shown_distance(changes->set->metric, list[i].distance));
    }
}

Size list_length_of(const Changes& changes, uint32 row) {
    const Edge* list = changes.lists + Size{row} * changes.degree;
    Size there = 0;
    while (there < changes.k && list[there].row != no_row) ++there;
    return there;
}

// How far two distances of the same rows may be apart: sums of so many terms come in another order
// on another machine, or on a device.
float rounding_of(const GraphSet& set, uint32 row, const Edge& edge) {
    const float part = static_cast<float>(8 + set.dims) * 0x1p-23f;
    if (set.metric != GraphMetric::inner_product)
        return part * std::fabs(shown_distance(set.metric, edge.distance));
    const float* a = set.rows + Size{row} * set.dims;
    const float* b = set.rows + Size{edge.row} * set.dims;
    return static_cast<float>(part *
                              std::sqrt(squared_norm(a, set.dims) * squared_norm(b, set.dims)));
}

// Whether the edges of a row, by rank, are those of its list. Among distances that are equal, but
// for rounding, any order is as good as another.
bool same_list(const Changes& changes, const TableEdges& edges, const Size* order, Size count,
               uint32 row) {
    const Edge* list = changes.lists + Size{row} * changes.degree;
    if (count != list_length_of(changes, row)) return false;
    const auto shown = [&](Size i) {
        return shown_distance(changes.set->metric, list[i].distance);
    };
    for (Size i = 0; i < count; ++i) {
        const Size at = order[i];
        const float rounding = rounding_of(*changes.set, row, list[i]);
        const auto is_equal = [&](float distance) {
            return std::fabs(distance - shown(i)) <= rounding;
        };
        if (edges.rank[at] != static_cast<int32>(i) + 1 || !is_equal(edges.distance[at]))
            return false;
        Size equal = i;
        while (equal > 0 && is_equal(shown(equal - 1))) --equal;
        while (equal < count && is_equal(shown(equal)) &&
               changes.set->keys[list[equal].row] != edges.dst[at])
            ++equal;
        if (equal == count || !is_equal(shown(equal))) return false;
    }
    return true;
}

struct AppendCounts {
    int64 added;
    int64 changed;
    int64 removed;
};

// Goes through the edges by (src, rank), beside the rows.
AppendCounts write_changes(Changes* changes, const TableEdges& edges, const KeyedRow* sorted) {
    const GraphSet& set = *changes->set;
    Size* order = static_cast<Size*>(MemoryContextAllocHuge(
        CurrentMemoryContext, std::max<Size>(edges.count, 1) * sizeof(Size)));
    for (Size i = 0; i < edges.count; ++i) order[i] = i;
    std::sort(order, order + edges.count, [&](Size a, Size b) {
        return edges.src[a] < edges.src[b] ||
               (edges.src[a] == edges.src[b] && edges.rank[a] < edges.rank[b]);
    });
    AppendCounts counts = {};
    Size at = 0;
    const auto pass_edges = [&](int64 key) {
        const Size begin = at;
        while (at < edges.count && edges.src[order[at]] == key) ++at;
        return at - begin;
    };
    for (Size i = 0; i <= set.count; ++i) {
        CHECK_FOR_INTERRUPTS();
        // Sources that are no rows any more.
        while (at < edges.count && (i == set.count || edges.src[order[at]] < sorted[i].key)) {
            const int64 gone = edges.src[order[at]];
            pass_edges(gone);
            change_list(changes, gone, no_row);
            ++counts.removed;
        }
        if (i == set.count) break;
        const Size begin = at, count = pass_edges(sorted[i].key);
        if (same_list(*changes, edges, order + begin, count, sorted[i].row)) continue;
        ++(count > 0 ? counts.changed : counts.added);
        change_list(changes, sorted[i].key, sorted[i].row);
    }
    flush_changes(changes);
    pfree(order);
    return counts;
}

// Which rows have the list that the graph should have of them: as many edges as there can be, all
// to rows that are still there, at distances that are still right.
bool* find_whole_rows(const TableEdges& edges, const GraphSet& set, uint32 k) {
    const KeyedRow* sorted = sort_by_key(set);
    const Size rows = std::max<Size>(set.count, 1);
    bool* whole = static_cast<bool*>(MemoryContextAllocHuge(CurrentMemoryContext, rows));
    uint32* counts = static_cast<uint32*>(MemoryContextAllocExtended(
        CurrentMemoryContext, rows * sizeof(uint32), MCXT_ALLOC_HUGE | MCXT_ALLOC_ZERO));
    std::fill_n(whole, rows, true);
    for (Size i = 0; i < edges.count; ++i) {
        if (i % 8192 == 0) CHECK_FOR_INTERRUPTS();
        const FoundEdge found =
            find_edge({edges.src[i], edges.dst[i], edges.distance[i], edges.rank[i]}, set, sorted);
        if (found.src == no_row) continue;
        ++counts[found.src];
        if (!found.as_written) whole[found.src] = false;
    }
    const auto sources = static_cast<Size>(
        std::count_if(counts, counts + set.count, [](uint32 c) { return c > 0; }));
    for (Size row = 0; row < set.count; ++row)
        whole[row] = whole[row] && counts[row] > 0 && counts[row] >= std::min<Size>(k, sources - 1);
    pfree(counts);
    pfree(const_cast<KeyedRow*>(sorted));
    return whole;
}

// Those rows first, then the others, which are new or as good as new. Returns where these begin.
Size order_set(GraphSet* set, bool* whole) {
    Size border = 0, end = set->count;
    while (true) {
        while (border < end && whole[border]) ++border;
        while (border < end && !whole[end - 1]) --end;
        if (border == end) return border;
        std::swap(whole[border], whole[end - 1]);
        std::swap(set->keys[border], set->keys[end - 1]);
        std::swap_ranges(set->rows + border * set->dims, set->rows + (border + 1) * set->dims,
                         set->rows + (end - 1) * set->dims);
    }
}

// One append at a time; others may read. LOCK TABLE asks for the caller's rights by itself.
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

PGWARP_FUNCTION(pgwarp_knn_graph_append) {
    constexpr const char* names[] = {"graph", "table", "key", "vector_column"};
    refuse_null_arguments(fcinfo, names, lengthof(names));
    if (PG_ARGISNULL(5) || PG_ARGISNULL(8))
        ereport(ERROR, (errcode(ERRCODE_NULL_VALUE_NOT_ALLOWED),
                        errmsg("%s must not be null", PG_ARGISNULL(5) ? "metric" : "seed")));
    const Oid graph = PG_GETARG_OID(0), table = PG_GETARG_OID(1);
    const GraphMetric metric = graph_metric_called(text_argument(fcinfo, 5));
    // Rows that policies hide would count as gone, and their edges, which others see, with them.
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
    // What was committed before the lock was granted is to be seen.
    PushActiveSnapshot(GetTransactionSnapshot());
    begin_graph_progress(table);
    report_graph_stage(GraphStage::edges, 0, 0);
    const GivenGraph given = read_given_graph(graph);
    if (given.edges.file)
        ereport(ERROR,
                (errcode(ERRCODE_PROGRAM_LIMIT_EXCEEDED),
                 errmsg("graph \"%s\" does not fit into maintenance_work_mem", get_rel_name(graph)),
                 errdetail("There is room for %zu edges.", given_in_memory()),
                 errhint("Increase maintenance_work_mem.")));
    const TableEdges& edges = given.edges.edges;
    const uint32 k = wanted_neighbors(fcinfo, 4, given.neighbors);
    GraphJob job = make_graph_job(fcinfo, metric, static_cast<int32>(k), {6, 7, 8});
    GraphSet set = read_graph_set({table, NameStr(*PG_GETARG_NAME(3)), NameStr(*PG_GETARG_NAME(2))},
                                  metric, {job.options.degree, job.k, job.threads}, Beyond::refuse);
    report_left_out(set);
    report_graph_stage(GraphStage::keys, 0, 0);
    const Size border = order_set(&set, find_whole_rows(edges, set, job.k));
    const KeyedRow* sorted = sort_by_key(set);
    const uint32 degree = job.options.degree;
    Edge* lists = alloc_lists(set.count, degree);
    load_given(given, set, sorted, 0, set.count, degree, lists);
    start_builder(&job, set.count, set.dims, false);
    const GraphRows rows{set.rows, set.count, set.dims, metric};
    run_graph_kernel([&] { job.maker.builder->append(rows, border, job.options, lists); });
    end_builder(&job);

    Changes changes = {};
    changes.graph = graph;
    changes.set = &set;
    changes.lists = lists;
    changes.degree = degree;
    changes.k = job.k;
    prepare_changes(&changes);
    report_graph_stage(GraphStage::writing, 0, 0);
    const AppendCounts counts = write_changes(&changes, edges, sorted);
    tell_graph_times(table, set.count);
    end_graph_progress();
    PopActiveSnapshot();
    SPI_finish();
    MemoryContextSwitchTo(context);
    Datum values[3] = {Int64GetDatum(counts.added), Int64GetDatum(counts.changed),
                       Int64GetDatum(counts.removed)};
    bool nulls[3] = {};
    return HeapTupleGetDatum(heap_form_tuple(descriptor, values, nulls));
}
