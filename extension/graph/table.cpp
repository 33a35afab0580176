#include <algorithm>

#include "extension/graph/table.h"

extern "C" {
#include "catalog/pg_type.h"
#include "executor/spi.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/guc.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"
#include "utils/snapmgr.h"
}

namespace pgwarp {

namespace {

constexpr Size edge_bytes = sizeof(int64) * 2 + sizeof(int32) + sizeof(float);

// InvalidOid: there is no such column.
Oid column_type(Oid graph, const char* name) {
    const AttrNumber attribute = get_attnum(graph, name);
    return attribute == InvalidAttrNumber ? InvalidOid : get_atttype(graph, attribute);
}

// Equal keys must be equal byte by byte.
bool is_deterministic(Oid graph, const char* name) {
    Oid type;
    int32 typmod;
    Oid collation;
    get_atttypetypmodcoll(graph, get_attnum(graph, name), &type, &typmod, &collation);
    return !OidIsValid(collation) || get_collation_isdeterministic(collation);
}

void check_graph_column(Oid graph, const char* name, bool number, const KeyNames* names) {
    const Oid type = column_type(graph, name);
    Oid base = type == InvalidOid ? InvalidOid : getBaseType(type);
    const bool fits = number ? base == FLOAT4OID || base == FLOAT8OID
                             : type != InvalidOid && is_key_type(names, type, &base);
    if (fits && !is_deterministic(graph, name))
        ereport(ERROR, (errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
                        errmsg("column \"%s\" of graph \"%s\" has a nondeterministic collation",
                               name, get_rel_name(graph)),
                        errdetail("It does not tell all keys apart.")));
    if (fits) return;
    ereport(ERROR,
            (errcode(type == InvalidOid ? ERRCODE_UNDEFINED_COLUMN : ERRCODE_DATATYPE_MISMATCH),
             errmsg("\"%s\" is not a graph", get_rel_name(graph)),
             type == InvalidOid
                 ? errdetail("It has no column \"%s\".", name)
                 : errdetail("Its column \"%s\" is of type %s.", name, format_type_be(type)),
             errhint("A graph has the columns src bigint, rank integer, dst bigint and distance "
                     "real, as knn_graph() gives them; or src and dst of uuid or text, as "
                     "knn_graph_text() does.")));
}

// An array of the compact form. Its elements are keys, or distances where `number` is set.
void check_array_column(Oid graph, const char* name, bool number, const KeyNames* names) {
    const Oid type = column_type(graph, name);
    const Oid element = get_base_element_type(type);
    Oid base = InvalidOid;
    if (OidIsValid(element) && (number ? element == FLOAT4OID || element == FLOAT8OID
                                       : is_key_type(names, element, &base)))
        return;
    ereport(ERROR, (errcode(ERRCODE_DATATYPE_MISMATCH),
                    errmsg("\"%s\" is not a graph", get_rel_name(graph)),
                    OidIsValid(type)
                        ? errdetail("Its column \"%s\" is of type %s.", name, format_type_be(type))
                        : errdetail("It has no column \"%s\".", name),
                    errhint("A compact graph has the columns src bigint, neighbors bigint[] and "
                            "distances real[], or src and neighbors of uuid or text.")));
}

}  // namespace

void check_graph_table(Oid graph, const KeyNames* names) {
    if (!get_rel_name(graph))
        ereport(ERROR, (errcode(ERRCODE_UNDEFINED_TABLE),
                        errmsg("relation with OID %u does not exist", graph)));
    if (is_compact_graph(graph)) {
        check_graph_column(graph, "src", false, names);
        check_array_column(graph, "neighbors", false, names);
        check_array_column(graph, "distances", true, nullptr);
        return;
    }
    for (const char* name : {"src", "dst"}) check_graph_column(graph, name, false, names);
    check_graph_column(graph, "rank", false, nullptr);
    check_graph_column(graph, "distance", true, nullptr);
}

namespace {

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

// Copies the fetched rows; `edges` has room for edges_of_scan.
void take_fetched(Oid graph, KeyNames* names, TableEdges* edges) {
    const Oid key_type = names ? TEXTOID : INT8OID;
    edges->count = 0;
    for (uint64 i = 0; i < SPI_processed; ++i) {
        Datum values[4];
        for (int c = 0; c < 4; ++c) {
            bool is_null;
            values[c] =
                SPI_getbinval(SPI_tuptable->vals[i], SPI_tuptable->tupdesc, c + 1, &is_null);
            if (is_null) report_null_edge(graph);
        }
        edges->src[edges->count] = key_of(names, values[0], key_type);
        edges->rank[edges->count] = DatumGetInt32(values[1]);
        edges->dst[edges->count] = key_of(names, values[2], key_type);
        edges->distance[edges->count] = DatumGetFloat4(values[3]);
        ++edges->count;
    }
}

// `argument`: of the condition, by key_array(); 0: it has none.
void scan_edges(Oid graph, KeyNames* names, const char* condition, Datum argument,
                const EdgeUse& use) {
    check_graph_table(graph, names);
    GrowingEdges some = new_growing_edges(edges_of_scan);
    const char* key_type = names ? "text" : "int8";
    StringInfoData query;
    initStringInfo(&query);
    appendStringInfo(&query,
                     "SELECT src::pg_catalog.%s, rank::pg_catalog.int4, dst::pg_catalog.%s, "
                     "distance::pg_catalog.float4 FROM %s%s%s",
                     key_type, key_type, qualified_name(graph),
                     is_compact_graph(graph)
                         ? ", ROWS FROM (pg_catalog.unnest(neighbors), "
                           "pg_catalog.unnest(distances)) WITH ORDINALITY AS list (dst, distance, "
                           "rank)"
                         : "",
                     condition);
    if (SPI_connect() != SPI_OK_CONNECT) elog(ERROR, "SPI_connect failed");
    Oid types[1] = {names ? Oid{TEXTARRAYOID} : Oid{INT8ARRAYOID}};
    Datum values[1] = {argument};
    const int arguments = argument ? 1 : 0;
    SPIPlanPtr plan = SPI_prepare_cursor(query.data, arguments, types, CURSOR_OPT_NO_SCROLL);
    if (!plan) elog(ERROR, "SPI_prepare failed: %s", SPI_result_code_string(SPI_result));
    const Portal portal = SPI_cursor_open(nullptr, plan, values, nullptr, true);
    do {
        CHECK_FOR_INTERRUPTS();
        SPI_cursor_fetch(portal, true, edges_of_scan);
        take_fetched(graph, names, &some.edges);
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

}  // namespace

GrowingEdges new_growing_edges(Size room) {
    GrowingEdges growing = {};
    growing.context = CurrentMemoryContext;
    make_room(&growing, room);
    return growing;
}

void report_null_edge(Oid graph) {
    ereport(ERROR, (errcode(ERRCODE_NULL_VALUE_NOT_ALLOWED),
                    errmsg("graph \"%s\" has an edge with a null", get_rel_name(graph))));
    pg_unreachable();
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

void query_graph_table(Oid graph, KeyNames* names, const EdgeUse& use) {
    scan_edges(graph, names, "", 0, use);
}

uint32 first_neighbors(Oid graph, const KeyNames* names) {
    check_graph_table(graph, names);
    const char* query = psprintf(
        "SELECT pg_catalog.max(list.rank)::pg_catalog.int4 FROM (SELECT %s AS rank FROM %s "
        "LIMIT 1000) AS list",
        is_compact_graph(graph) ? "pg_catalog.array_length(neighbors, 1)" : "rank",
        qualified_name(graph));
    if (SPI_execute(query, true, 0) != SPI_OK_SELECT) elog(ERROR, "could not read the graph");
    bool is_null;
    const Datum rank = SPI_getbinval(SPI_tuptable->vals[0], SPI_tuptable->tupdesc, 1, &is_null);
    const int32 most = is_null ? 0 : DatumGetInt32(rank);
    SPI_freetuptable(SPI_tuptable);
    return static_cast<uint32>(std::max(most, 0));
}

bool is_compact_graph(Oid graph) {
    return get_attnum(graph, "neighbors") != InvalidAttrNumber &&
           get_attnum(graph, "dst") == InvalidAttrNumber;
}

KeyNames* names_in_graph(Oid graph) {
    for (const char* name : {"src", "dst"}) {
        const Oid type = column_type(graph, name);
        Oid base;
        if (OidIsValid(type) && !is_key_type(nullptr, type, &base))
            return new_key_names(graph_memory());
    }
    return nullptr;
}

const char* key_type_name(Oid table, const char* column) {
    const Oid type = column_type(table, column);
    const Oid base = OidIsValid(type) ? getBaseType(type) : InvalidOid;
    return base == UUIDOID ? "uuid" : base == TEXTOID || base == VARCHAROID ? "text" : "int8";
}

Datum key_array(const KeyNames* names, const int64* keys, Size count) {
    Datum* values = static_cast<Datum*>(palloc(sizeof(Datum) * std::max<Size>(count, 1)));
    for (Size i = 0; i < count; ++i) values[i] = key_datum(names, keys[i]);
    ArrayType* array =
        names ? construct_array(values, static_cast<int>(count), TEXTOID, -1, false, TYPALIGN_INT)
              : construct_array(values, static_cast<int>(count), INT8OID, sizeof(int64),
                                FLOAT8PASSBYVAL, TYPALIGN_DOUBLE);
    pfree(values);
    return PointerGetDatum(array);
}

int begin_keyed_queries() {
    const int level = NewGUCNestLevel();
    for (const char* setting : {"enable_seqscan", "jit"})
        set_config_option(setting, "off", PGC_USERSET, PGC_S_SESSION, GUC_ACTION_SAVE, true, 0,
                          false);
    return level;
}

char* qualified_name(Oid table) {
    return quote_qualified_identifier(get_namespace_name(get_rel_namespace(table)),
                                      get_rel_name(table));
}

Size most_graph_edges(Size bytes_beside) {
    return graph_memory() / (edge_bytes + bytes_beside);
}

TableEdges read_graph_edges_of(Oid graph, KeyNames* names, const int64* sources, Size count,
                               uint32 rank) {
    const char* condition =
        names ? psprintf(" WHERE src OPERATOR(pg_catalog.=) ANY ($1::pg_catalog.%s[])",
                         key_type_name(graph, "src"))
              : " WHERE src OPERATOR(pg_catalog.=) ANY ($1)";
    if (rank > 0) condition = psprintf("%s AND rank OPERATOR(pg_catalog.=) %u", condition, rank);
    Collecting all = {new_growing_edges(), graph, most_graph_edges(0)};
    const int level = begin_keyed_queries();
    scan_edges(graph, names, condition, key_array(names, sources, count), {collect_edges, &all});
    AtEOXact_GUC(false, level);
    return all.growing.edges;
}

}  // namespace pgwarp
