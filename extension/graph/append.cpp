// knn_graph_append: brings a graph up to date after rows of its table were added, changed or
// removed.

#include <algorithm>
#include <cmath>
#include <utility>

#include "kernels/distance.h"
#include "kernels/graph_stream.h"
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

struct AppendCounts {
    int64 added;
    int64 changed;
    int64 removed;
};

// Replaces the lists in the graph's table that differ from the new ones.
struct Changes {
    Oid graph;
    const GraphSet* set;
    const GivenGraph* given;
    const KeyedRow* sorted;
    const float* norms;  // (rows), by find_norms(); null but for inner products
    uint32 k;
    AppendCounts counts;

    // Changes are flushed a thousand sources at a time, as array parameters.
    static constexpr int at_once = 1000;
    int64 keys[at_once];
    int key_count;
    // (at_once * k) each
    int64* src;
    Datum* rank;
    int64* dst;
    Datum* distance;
    int edge_count;
    SPIPlanPtr remove;
    SPIPlanPtr add;
};

// Of ranks or distances.
Datum array_of(Datum* values, int count, Oid type) {
    return PointerGetDatum(construct_array(values, count, type, 4, true, TYPALIGN_INT));
}

SPIPlanPtr prepare(const char* query, int arguments, Oid* types) {
    SPIPlanPtr plan = SPI_prepare(query, arguments, types);
    if (!plan) elog(ERROR, "SPI_prepare failed: %s", SPI_result_code_string(SPI_result));
    return plan;
}

void prepare_changes(Changes* changes) {
    const char* name = qualified_name(changes->graph);
    const Oid keys = changes->set->names ? TEXTARRAYOID : INT8ARRAYOID;
    Oid types[] = {keys, INT4ARRAYOID, keys, FLOAT4ARRAYOID};
    const char* src = key_type_name(changes->graph, "src");
    changes->remove = prepare(
        psprintf("DELETE FROM %s WHERE src OPERATOR(pg_catalog.=) ANY ($1::pg_catalog.%s[])", name,
                 src),
        1, types);
    const bool compact = is_compact_graph(changes->graph);
    const char* dst = compact ? src : key_type_name(changes->graph, "dst");
    const char* edges_as_rows =
        psprintf("ROWS FROM (pg_catalog.unnest($1::pg_catalog.%s[]), pg_catalog.unnest($2), "
                 "pg_catalog.unnest($3::pg_catalog.%s[]), pg_catalog.unnest($4)) AS edge (src, "
                 "rank, dst, distance)",
                 src, dst);
    changes->add = prepare(
        compact ? psprintf("INSERT INTO %s (src, neighbors, distances) SELECT src, "
                           "pg_catalog.array_agg(dst ORDER BY rank), "
                           "pg_catalog.array_agg(distance ORDER BY rank) FROM %s GROUP BY src",
                           name, edges_as_rows)
                : psprintf("INSERT INTO %s (src, rank, dst, distance) SELECT src, rank, dst, "
                           "distance FROM %s",
                           name, edges_as_rows),
        4, types);
    const Size edges = Size{Changes::at_once} * changes->k;
    const auto alloc = [](Size bytes) { return palloc(bytes); };
    changes->src = static_cast<int64*>(alloc(edges * sizeof(int64)));
    changes->rank = static_cast<Datum*>(alloc(edges * sizeof(Datum)));
    changes->dst = static_cast<int64*>(alloc(edges * sizeof(int64)));
    changes->distance = static_cast<Datum*>(alloc(edges * sizeof(Datum)));
}

void flush_changes(Changes* changes) {
    if (changes->key_count == 0) return;
    CHECK_FOR_INTERRUPTS();
    const KeyNames* names = changes->set->names;
    const auto edges = static_cast<Size>(changes->edge_count);
    Datum values[4] = {key_array(names, changes->keys, static_cast<Size>(changes->key_count))};
    if (SPI_execute_plan(changes->remove, values, nullptr, false, 0) != SPI_OK_DELETE)
        elog(ERROR, "could not remove edges");
    pfree(DatumGetPointer(values[0]));
    values[0] = key_array(names, changes->src, edges);
    values[1] = array_of(changes->rank, changes->edge_count, INT4OID);
    values[2] = key_array(names, changes->dst, edges);
    values[3] = array_of(changes->distance, changes->edge_count, FLOAT4OID);
    if (SPI_execute_plan(changes->add, values, nullptr, false, 0) != SPI_OK_INSERT)
        elog(ERROR, "could not add edges");
    for (const Datum value : values) pfree(DatumGetPointer(value));
    changes->key_count = changes->edge_count = 0;
}

// Queues a source: its edges are deleted, and those of `list` inserted. Null: the row is gone.
void change_list(Changes* changes, int64 key, const Edge* list) {
    if (changes->key_count == Changes::at_once) flush_changes(changes);
    changes->keys[changes->key_count++] = key;
    if (!list) return;
    for (uint32 i = 0; i < changes->k && list[i].row != no_row; ++i) {
        const int at = changes->edge_count++;
        changes->src[at] = key;
        changes->rank[at] = Int32GetDatum(static_cast<int32>(i) + 1);
        changes->dst[at] = changes->set->keys[list[i].row];
        changes->distance[at] =
            Float4GetDatum(edge_operator_distance(changes->set->metric, list[i].distance));
    }
}

// How far two distances of the same rows may differ: another machine, or a device, adds up the
// `dims` terms in another order.
float rounding_of(const Changes& changes, uint32 row, const Edge& edge) {
    const GraphSet& set = *changes.set;
    const float part = static_cast<float>(8 + set.dims) * 0x1p-23f;
    if (set.metric != Metric::inner_product)
        return part * std::fabs(edge_operator_distance(set.metric, edge.distance));
    return part * changes.norms[row] * changes.norms[edge.row];
}

// Norms of the rows, in memory or in the file, for rounding_of().
float* find_norms(const GraphSet& set) {
    if (set.metric != Metric::inner_product) return nullptr;
    constexpr Size block_rows = 1024;
    float* norms = static_cast<float*>(
        MemoryContextAllocHuge(CurrentMemoryContext, std::max<Size>(set.count, 1) * sizeof(float)));
    float* block = static_cast<float*>(
        MemoryContextAllocHuge(CurrentMemoryContext, block_rows * set.dims * sizeof(float) + 1));
    for (Size first = 0; first < set.count; first += block_rows) {
        const Size count = std::min(block_rows, set.count - first);
        if (set.file) read_spilled(set, first, count, block);
        const float* rows = set.file ? block : set.rows + first * set.dims;
        for (Size i = 0; i < count; ++i)
            norms[first + i] =
                static_cast<float>(std::sqrt(squared_norm(rows + i * set.dims, set.dims)));
    }
    pfree(block);
    return norms;
}

// An edge of the graph's table. Twice the size of an Edge: append_by_parts() reuses Parts::lists.
struct WrittenEdge {
    int64 dst;
    int32 rank;
    float distance;
};
static_assert(sizeof(WrittenEdge) == 2 * sizeof(Edge));

// Whether the edges of a row, sorted by rank, are those of its list. Neighbors whose distances are
// equal up to rounding may be in any order.
bool same_list(const Changes& changes, const WrittenEdge* written, Size count, uint32 row,
               const Edge* list) {
    Size there = 0;
    while (there < changes.k && list[there].row != no_row) ++there;
    if (count != there) return false;
    const auto shown = [&](Size i) {
        return edge_operator_distance(changes.set->metric, list[i].distance);
    };
    for (Size i = 0; i < count; ++i) {
        const float rounding = rounding_of(changes, row, list[i]);
        const auto is_equal = [&](float distance) {
            return std::fabs(distance - shown(i)) <= rounding;
        };
        if (written[i].rank != static_cast<int32>(i) + 1 || !is_equal(written[i].distance))
            return false;
        Size equal = i;
        while (equal > 0 && is_equal(shown(equal - 1))) --equal;
        while (equal < count && is_equal(shown(equal)) &&
               changes.set->keys[list[equal].row] != written[i].dst)
            ++equal;
        if (equal == count || !is_equal(shown(equal))) return false;
    }
    return true;
}

// Rows [begin, end) and their new lists, (rows)(stride). `written` is scratch: (rows)(k).
struct ChangedRows {
    Size begin, end;
    const Edge* lists;
    uint32 stride;
    WrittenEdge* written;
};

void write_changes(Changes* changes, const ChangedRows& rows) {
    const Size count = rows.end - rows.begin;
    uint32* lengths = static_cast<uint32*>(
        MemoryContextAllocExtended(CurrentMemoryContext, std::max<Size>(count, 1) * sizeof(uint32),
                                   MCXT_ALLOC_HUGE | MCXT_ALLOC_ZERO));
    for_edges(changes->given->edges, [&](const KeyedEdge& edge) {
        const uint32 src = find_key(changes->sorted, changes->set->count, edge.src);
        if (src == no_row || src < rows.begin || src >= rows.end) return;
        const uint32 place = lengths[src - rows.begin]++;
        // A list longer than k differs in any case.
        if (place < changes->k)
            rows.written[(src - rows.begin) * changes->k + place] = {edge.dst, edge.rank,
                                                                     edge.distance};
    });
    for (Size i = 0; i < count; ++i) {
        if (i % 1024 == 0) CHECK_FOR_INTERRUPTS();
        WrittenEdge* written = rows.written + i * changes->k;
        const Edge* list = rows.lists + i * rows.stride;
        if (lengths[i] <= changes->k) {
            std::sort(written, written + lengths[i],
                      [](const WrittenEdge& a, const WrittenEdge& b) { return a.rank < b.rank; });
            const auto row = static_cast<uint32>(rows.begin + i);
            if (same_list(*changes, written, lengths[i], row, list)) continue;
        }
        ++(lengths[i] > 0 ? changes->counts.changed : changes->counts.added);
        change_list(changes, changes->set->keys[rows.begin + i], list);
    }
    pfree(lengths);
}

// Deletes the edges of sources whose rows are gone.
void remove_gone(Changes* changes) {
    const Size most = static_cast<Size>(maintenance_work_mem) * 1024 / NodeNumbers::node_bytes;
    Owned<NodeNumbers>* gone = owned_by<NodeNumbers>(CurrentMemoryContext);
    guarded([&] { gone->object = new NodeNumbers(most); });
    KeyedEdge* some = static_cast<KeyedEdge*>(palloc(sizeof(KeyedEdge) * edges_at_once));
    const GraphEdges& edges = changes->given->edges;
    bool fits = true;
    for (Size first = 0; first < edges.count;) {
        const Size here = next_edges(edges, first, some);
        first += here;
        guarded([&] {
            for (Size i = 0; i < here; ++i)
                if (find_key(changes->sorted, changes->set->count, some[i].src) == no_row)
                    fits = gone->object->add(some[i].src) && fits;
        });
        if (!fits) break;
    }
    guarded([&] { fits = fits && gone->object->finish(); });
    if (!fits)
        ereport(ERROR, (errcode(ERRCODE_PROGRAM_LIMIT_EXCEEDED),
                        errmsg("graph \"%s\" has more than %zu nodes that are no rows of the table",
                               get_rel_name(changes->graph), most),
                        errhint("Increase maintenance_work_mem, or make the graph anew.")));
    pfree(some);
    for (Size i = 0; i < gone->object->count(); ++i)
        change_list(changes, gone->object->node(static_cast<uint32>(i)), nullptr);
    changes->counts.removed = static_cast<int64>(gone->object->count());
    guarded([&] { delete std::exchange(gone->object, nullptr); });
}

// Moves rows with whole lists before the others, which are searched for as new rows are. Returns
// where the others begin.
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

void append_in_memory(const GraphJob& job, GraphSet* set, Changes* changes) {
    report_graph_stage(GraphStage::keys, 0, 0);
    KeyedRow* before = sort_by_key(*set);
    bool* whole = find_whole_rows(*changes->given, *set, before, job.k);
    pfree(before);
    const Size border = order_set(set, whole);
    changes->sorted = sort_by_key(*set);
    const uint32 degree = job.options.degree;
    Edge* lists = alloc_lists(set->count, degree);
    load_given(*changes->given, *set, changes->sorted, 0, set->count, degree, lists);
    const GraphRows rows{set->rows, set->count, set->dims, job.metric};
    run_graph_kernel([&] { job.maker.builder->append(rows, border, job.options, lists); });
    report_graph_stage(GraphStage::writing, 0, 0);
    changes->norms = find_norms(*set);
    WrittenEdge* written = static_cast<WrittenEdge*>(MemoryContextAllocHuge(
        CurrentMemoryContext, std::max<Size>(set->count * job.k, 1) * sizeof(WrittenEdge)));
    remove_gone(changes);
    write_changes(changes, {0, set->count, lists, degree, written});
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
