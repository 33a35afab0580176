#include <algorithm>

#include "extension/graph/table.h"
#include "extension/table/columns.h"

extern "C" {
#include "catalog/pg_type.h"
#include "executor/spi.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"
}

namespace pgwarp {

namespace {

constexpr long rows_at_once = 10000;
constexpr Size edge_bytes = sizeof(int64) * 2 + sizeof(int32) + sizeof(float);

void check_graph_column(Oid graph, const char* name, bool number) {
    const AttrNumber attribute = get_attnum(graph, name);
    const Oid type = attribute == InvalidAttrNumber ? InvalidOid : get_atttype(graph, attribute);
    Oid base = type == InvalidOid ? InvalidOid : getBaseType(type);
    const bool fits = number ? base == FLOAT4OID || base == FLOAT8OID
                             : type != InvalidOid && is_key_type(type, &base);
    if (fits) return;
    ereport(ERROR,
            (errcode(type == InvalidOid ? ERRCODE_UNDEFINED_COLUMN : ERRCODE_DATATYPE_MISMATCH),
             errmsg("\"%s\" is not a graph", get_rel_name(graph)),
             type == InvalidOid
                 ? errdetail("It has no column \"%s\".", name)
                 : errdetail("Its column \"%s\" is of type %s.", name, format_type_be(type)),
             errhint("A graph has the columns src bigint, rank integer, dst bigint and distance "
                     "real, as knn_graph() gives them.")));
}

void check_graph_table(Oid graph) {
    if (!get_rel_name(graph))
        ereport(ERROR, (errcode(ERRCODE_UNDEFINED_TABLE),
                        errmsg("relation with OID %u does not exist", graph)));
    for (const char* name : {"src", "rank", "dst"}) check_graph_column(graph, name, false);
    check_graph_column(graph, "distance", true);
}

template <typename T>
void grow_array(const GrowingEdges& growing, T** array) {
    const Size bytes = growing.room * sizeof(T);
    *array = static_cast<T*>(*array ? repalloc_huge(*array, bytes)
                                    : MemoryContextAllocHuge(growing.context, bytes));
}

void make_room(GrowingEdges* growing, Size wanted) {
    if (wanted <= growing->room) return;
    growing->room = std::max(wanted, growing->room + growing->room / 2);
    grow_array(*growing, &growing->edges.src);
    grow_array(*growing, &growing->edges.rank);
    grow_array(*growing, &growing->edges.dst);
    grow_array(*growing, &growing->edges.distance);
}

// Copies the fetched rows; `edges` has room for rows_at_once.
void take_fetched(Oid graph, TableEdges* edges) {
    edges->count = 0;
    for (uint64 i = 0; i < SPI_processed; ++i) {
        Datum values[4];
        for (int c = 0; c < 4; ++c) {
            bool is_null;
            values[c] =
                SPI_getbinval(SPI_tuptable->vals[i], SPI_tuptable->tupdesc, c + 1, &is_null);
            if (is_null)
                ereport(ERROR,
                        (errcode(ERRCODE_NULL_VALUE_NOT_ALLOWED),
                         errmsg("graph \"%s\" has an edge with a null", get_rel_name(graph))));
        }
        edges->src[edges->count] = DatumGetInt64(values[0]);
        edges->rank[edges->count] = DatumGetInt32(values[1]);
        edges->dst[edges->count] = DatumGetInt64(values[2]);
        edges->distance[edges->count] = DatumGetFloat4(values[3]);
        ++edges->count;
    }
}

void scan_edges(Oid graph, const char* condition, Datum argument, const EdgeUse& use) {
    check_graph_table(graph);
    GrowingEdges some = new_growing_edges();
    make_room(&some, rows_at_once);
    StringInfoData query;
    initStringInfo(&query);
    appendStringInfo(&query,
                     "SELECT src::pg_catalog.int8, rank::pg_catalog.int4, dst::pg_catalog.int8, "
                     "distance::pg_catalog.float4 FROM %s%s",
                     qualified_name(graph), condition);
    if (SPI_connect() != SPI_OK_CONNECT) elog(ERROR, "SPI_connect failed");
    Oid types[1] = {INT8ARRAYOID};
    Datum values[1] = {argument};
    const int arguments = argument ? 1 : 0;
    SPIPlanPtr plan = SPI_prepare_cursor(query.data, arguments, types, CURSOR_OPT_NO_SCROLL);
    if (!plan) elog(ERROR, "SPI_prepare failed: %s", SPI_result_code_string(SPI_result));
    const Portal portal = SPI_cursor_open(nullptr, plan, values, nullptr, true);
    do {
        CHECK_FOR_INTERRUPTS();
        SPI_cursor_fetch(portal, true, rows_at_once);
        take_fetched(graph, &some.edges);
        SPI_freetuptable(SPI_tuptable);
        if (some.edges.count > 0) use.use(use.state, some.edges);
    } while (some.edges.count > 0);
    SPI_cursor_close(portal);
    SPI_finish();
    free_edges(&some.edges);
}

// State of collect_edges(): all edges, in memory.
struct Collecting {
    GrowingEdges growing;
    Oid graph;
    Size most;
};

void collect_edges(void* state, const TableEdges& some) {
    Collecting* all = static_cast<Collecting*>(state);
    if (all->growing.edges.count + some.count > all->most)
        ereport(ERROR, (errcode(ERRCODE_PROGRAM_LIMIT_EXCEEDED),
                        errmsg("graph \"%s\" does not fit into maintenance_work_mem",
                               get_rel_name(all->graph)),
                        errdetail("There is room for %zu edges.", all->most),
                        errhint("Increase maintenance_work_mem.")));
    append_edges(&all->growing, some);
}

TableEdges read_edges(Oid graph, const char* condition, Datum argument, Size most) {
    Collecting all = {new_growing_edges(), graph, most};
    scan_edges(graph, condition, argument, {collect_edges, &all});
    return all.growing.edges;
}

}  // namespace

GrowingEdges new_growing_edges() {
    GrowingEdges growing = {};
    growing.context = CurrentMemoryContext;
    make_room(&growing, 1024);
    return growing;
}

void append_edges(GrowingEdges* growing, const TableEdges& some) {
    TableEdges& edges = growing->edges;
    make_room(growing, edges.count + some.count);
    std::copy_n(some.src, some.count, edges.src + edges.count);
    std::copy_n(some.rank, some.count, edges.rank + edges.count);
    std::copy_n(some.dst, some.count, edges.dst + edges.count);
    std::copy_n(some.distance, some.count, edges.distance + edges.count);
    edges.count += some.count;
}

void free_edges(TableEdges* edges) {
    pfree(edges->src);
    pfree(edges->rank);
    pfree(edges->dst);
    pfree(edges->distance);
    *edges = {};
}

void scan_graph_table(Oid graph, const EdgeUse& use) {
    scan_edges(graph, "", 0, use);
}

char* qualified_name(Oid table) {
    return quote_qualified_identifier(get_namespace_name(get_rel_namespace(table)),
                                      get_rel_name(table));
}

Size most_graph_edges(Size bytes_beside) {
    return static_cast<Size>(maintenance_work_mem) * 1024 / (edge_bytes + bytes_beside);
}

TableEdges read_graph_table(Oid graph, Size most) {
    return read_edges(graph, "", 0, most);
}

TableEdges read_graph_edges_of(Oid graph, const int64* sources, Size count) {
    Datum* keys = static_cast<Datum*>(palloc(sizeof(Datum) * std::max<Size>(count, 1)));
    for (Size i = 0; i < count; ++i) keys[i] = Int64GetDatum(sources[i]);
    const Datum array = PointerGetDatum(construct_array(
        keys, static_cast<int>(count), INT8OID, sizeof(int64), FLOAT8PASSBYVAL, TYPALIGN_DOUBLE));
    return read_edges(graph, " WHERE src OPERATOR(pg_catalog.=) ANY ($1)", array,
                      most_graph_edges(0));
}

}  // namespace pgwarp
