// knn_graph_create: writes a graph to a new table with a primary key, and measures its recall.
//
// To everybody else it is CREATE TABLE AS and ALTER TABLE ... ADD PRIMARY KEY, in one transaction.
// The table is created empty. Where edge_pages.h can fill it, the primary key is added next, and
// the pages of both are written along with each other; else rows are inserted, and then the key is
// added.

#include <cstring>

#include "kernels/knn_graph.h"
#include "extension/graph/auto.h"
#include "extension/graph/edge_pages.h"
#include "extension/graph/edge_table.h"
#include "extension/graph/functions.h"
#include "extension/graph/table.h"
#include "extension/table/planned.h"
#include "extension/util/signature.h"

extern "C" {
#include "access/genam.h"
#include "access/htup_details.h"
#include "access/table.h"
#include "catalog/namespace.h"
#include "catalog/pg_type.h"
#include "executor/spi.h"
#include "storage/bufmgr.h"
#include "utils/builtins.h"
#include "utils/lsyscache.h"
#include "utils/regproc.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"
#include "utils/timestamp.h"
#include "utils/varlena.h"
}

namespace pgwarp {

namespace {

// Removes the line that SPI adds for this statement from an error's context: the user did not write
// it. Lines above and below it stay.
void drop_from_context(ErrorData* error, const char* query) {
    char* place = error->context ? strstr(error->context, query) : nullptr;
    if (!place) return;
    char* end = strchr(place + strlen(query), '\n');
    while (place > error->context && place[-1] != '\n') --place;
    if (end)
        memmove(place, end + 1, strlen(end + 1) + 1);
    else
        place[place > error->context ? -1 : 0] = '\0';
    if (error->context[0] == '\0') error->context = nullptr;
}

void execute(const char* query, int expected, const char* what) {
    const MemoryContext context = CurrentMemoryContext;
    PG_TRY();
    {
        if (SPI_execute(query, false, 0) != expected) elog(ERROR, "could not %s", what);
    }
    PG_CATCH();
    {
        MemoryContextSwitchTo(context);
        ErrorData* error = CopyErrorData();
        FlushErrorState();
        drop_from_context(error, query);
        ReThrowError(error);
    }
    PG_END_TRY();
}

// The table that is made, and what is made of it.
struct NewGraph {
    char* name;  // qualified: search_path could resolve the bare name to another schema
    const char* relation;
    Oid schema;
    const char* key_type;
    GraphForm form;
    bool unlogged;
};

// By its name, as nothing of it is locked while statements run that change it.
Oid find_graph(const NewGraph& graph) {
    const Oid found = get_relname_relid(graph.relation, graph.schema);
    if (!OidIsValid(found))
        ereport(ERROR, (errcode(ERRCODE_UNDEFINED_TABLE),
                        errmsg("relation \"%s\" does not exist", graph.relation),
                        errdetail("It was removed while the graph was made.")));
    return found;
}

[[noreturn]] void report_changed(const NewGraph& graph) {
    ereport(ERROR,
            (errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
             errmsg("relation \"%s\" was changed while the graph was made", graph.relation)));
    pg_unreachable();
}

void create_empty(const NewGraph& graph) {
    const char* type = graph.key_type;
    const char* columns =
        graph.form == GraphForm::edges
            ? psprintf(
                  "NULL::pg_catalog.%s AS src, NULL::pg_catalog.int4 AS rank, "
                  "NULL::pg_catalog.%s AS dst, NULL::pg_catalog.float4 AS distance",
                  type, type)
            : psprintf(
                  "NULL::pg_catalog.%s AS src, NULL::pg_catalog.%s[] AS neighbors, "
                  "NULL::pg_catalog.float4[] AS distances",
                  type, type);
    execute(psprintf("CREATE %sTABLE %s AS SELECT %s WITH NO DATA",
                     graph.unlogged ? "UNLOGGED " : "", graph.name, columns),
            SPI_OK_UTILITY, "make the graph");
}

void add_primary_key(const NewGraph& graph) {
    execute(psprintf("ALTER TABLE %s ADD PRIMARY KEY (%s)", graph.name,
                     graph.form == GraphForm::edges ? "src, rank" : "src"),
            SPI_OK_UTILITY, "add a primary key");
}

bool has_types(const NewGraph& graph, TupleDesc columns) {
    const Oid key = strcmp(graph.key_type, "uuid") == 0   ? UUIDOID
                    : strcmp(graph.key_type, "text") == 0 ? TEXTOID
                                                          : INT8OID;
    const Oid edges[] = {key, INT4OID, key, FLOAT4OID};
    const Oid lists[] = {key, get_array_type(key), FLOAT4ARRAYOID};
    const bool compact = graph.form == GraphForm::compact;
    if (columns->natts != static_cast<int>(compact ? lengthof(lists) : lengthof(edges)))
        return false;
    for (int i = 0; i < columns->natts; ++i) {
        const auto* column = TupleDescAttr(columns, i);
        if (column->attisdropped || column->atttypid != (compact ? lists : edges)[i]) return false;
    }
    return true;
}

// Reports an error where the table is not as it was made, with this number of indexes: triggers on
// DDL may have changed it, or another extension keeps its rows elsewhere. Rows are written without
// looking for constraints, triggers and indexes.
void check_unchanged(const NewGraph& graph, Relation table, int indexes) {
    const TupleDesc columns = RelationGetDescr(table);
    const bool same =
        has_types(graph, columns) && list_length(RelationGetIndexList(table)) == indexes &&
        !table->trigdesc && !table->rd_rules && !table->rd_rel->relispartition &&
        !(columns->constr && (columns->constr->num_check > 0 || columns->constr->num_defval > 0)) &&
        RelationGetNumberOfBlocks(table) == 0 &&
        where_rows_are(RelationGetRelid(table)) == RowsAre::in_table;
    if (!same) report_changed(graph);
}

// Writes the graph as pages; false: the table is none that can be filled so.
bool write_as_pages(const NewGraph& graph, GraphCall* call, int64* edges) {
    if (graph.form != GraphForm::edges || call->columns.names) return false;
    Relation table = table_open(find_graph(graph), NoLock);
    check_unchanged(graph, table, 0);
    const bool fits = takes_edge_pages(table);
    table_close(table, NoLock);
    if (!fits) return false;
    add_primary_key(graph);
    table = table_open(find_graph(graph), NoLock);
    List* indexes = RelationGetIndexList(table);
    Relation index =
        list_length(indexes) == 1 ? index_open(linitial_oid(indexes), NoLock) : nullptr;
    check_unchanged(graph, table, 1);
    if (!index || !takes_edge_pages(table) || !takes_edge_leaves(index)) report_changed(graph);
    const Oid index_number = RelationGetRelid(index);
    EdgeWriter* writer = open_page_writer(table, index);
    make_graph(call, writer, true);
    *edges = writer->count;
    const bool complete = end_page_writer(writer);
    index_close(index, NoLock);
    table_close(table, NoLock);
    if (!complete)
        execute(psprintf("REINDEX INDEX %s", qualified_name(index_number)), SPI_OK_UTILITY,
                "add a primary key");
    return true;
}

void write_as_rows(const NewGraph& graph, GraphCall* call, int64* edges) {
    Relation table = table_open(find_graph(graph), NoLock);
    check_unchanged(graph, table, 0);
    EdgeWriter* writer = open_row_writer(table, call->columns.names, graph.form);
    make_graph(call, writer, true);
    *edges = writer->count;
    end_row_writer(writer);
    table_close(table, NoLock);
    add_primary_key(graph);
}

// With auto => true: what is kept by triggers, and the graph once it is made.
KeptGraph kept_graph(const GraphCall& call, Oid graph) {
    KeptGraph kept = {};
    kept.graph = graph;
    kept.table = call.columns.table;
    kept.key = call.columns.key;
    kept.vector = call.columns.vector;
    kept.metric = call.job.metric;
    kept.k = call.job.k;
    return kept;
}

bool flag_argument(FunctionCallInfo fcinfo, int number, const char* name) {
    if (PG_ARGISNULL(number))
        ereport(ERROR,
                (errcode(ERRCODE_NULL_VALUE_NOT_ALLOWED), errmsg("%s must not be null", name)));
    return PG_GETARG_BOOL(number);
}

// What the arguments ask for. Reports an error where that cannot be made.
NewGraph new_graph(FunctionCallInfo fcinfo) {
    const RangeVar* name = makeRangeVarFromNameList(
        textToQualifiedNameList(cstring_to_text(text_argument(fcinfo, 0))));
    NewGraph graph = {};
    graph.form = flag_argument(fcinfo, 11, "compact") ? GraphForm::compact : GraphForm::edges;
    graph.unlogged = flag_argument(fcinfo, 12, "unlogged");
    graph.schema = RangeVarGetCreationNamespace(name);
    graph.relation = name->relname;
    graph.name = quote_qualified_identifier(get_namespace_name(graph.schema), name->relname);
    if (OidIsValid(get_relname_relid(name->relname, graph.schema)))
        ereport(ERROR, (errcode(ERRCODE_DUPLICATE_TABLE),
                        errmsg("relation \"%s\" already exists", name->relname),
                        errhint("Choose another name, drop it first, or bring a graph up to date "
                                "with knn_graph_append().")));
    const Oid table = PG_GETARG_OID(1);
    if (!get_rel_name(table))
        ereport(ERROR, (errcode(ERRCODE_UNDEFINED_TABLE),
                        errmsg("relation with OID %u does not exist", table)));
    // The graph's columns have the type of the keys.
    graph.key_type = key_type_name(table, NameStr(*PG_GETARG_NAME(2)));
    return graph;
}

}  // namespace

}  // namespace pgwarp

using namespace pgwarp;

PGWARP_FUNCTION(pgwarp_knn_graph_create) {
    check_signature(fcinfo, 14, 4);
    constexpr const char* names[] = {"graph", "table",  "key",   "vector_column",
                                     "k",     "method", "metric"};
    refuse_null_arguments(fcinfo, names, lengthof(names));
    TupleDesc descriptor;
    if (get_call_result_type(fcinfo, nullptr, &descriptor) != TYPEFUNC_COMPOSITE)
        elog(ERROR, "return type must be a row type");
    descriptor = BlessTupleDesc(descriptor);
    const MemoryContext context = CurrentMemoryContext;
    const NewGraph graph = new_graph(fcinfo);
    const bool kept = flag_argument(fcinfo, 13, "auto");
    const Oid table = PG_GETARG_OID(1);
    const char* schema =
        quote_identifier(get_namespace_name(get_func_namespace(fcinfo->flinfo->fn_oid)));

    if (SPI_connect() != SPI_OK_CONNECT) elog(ERROR, "SPI_connect failed");
    const TimestampTz begin = GetCurrentTimestamp();
    GraphCall call = read_graph_call(fcinfo, 1);
    if (strcmp(graph.key_type, "int8") != 0) {
        call.columns.names = new_key_names(graph_memory());
        // The index is made at the end: all work would be in vain.
        require_short_keys(call.columns.names);
    }
    if (kept) check_kept_table(kept_graph(call, InvalidOid), GetUserId());
    create_empty(graph);
    if (kept) check_kept_graph(kept_graph(call, find_graph(graph)));
    // A new snapshot, as the statement that fills a table would take.
    PushActiveSnapshot(GetTransactionSnapshot());
    int64 edges = 0;
    if (!write_as_pages(graph, &call, &edges)) write_as_rows(graph, &call, &edges);
    PopActiveSnapshot();
    if (kept) add_triggers(kept_graph(call, find_graph(graph)), schema);
    const float8 seconds = static_cast<float8>(GetCurrentTimestamp() - begin) / USECS_PER_SEC;
    execute(
        psprintf("SELECT %s.knn_graph_recall(%s::pg_catalog.regclass, "
                 "%s::pg_catalog.regclass, %s::pg_catalog.name, %s::pg_catalog.name, "
                 "100::pg_catalog.int4, %s::pg_catalog.text)",
                 schema, quote_literal_cstr(graph.name), quote_literal_cstr(qualified_name(table)),
                 quote_literal_cstr(NameStr(*PG_GETARG_NAME(2))),
                 quote_literal_cstr(NameStr(*PG_GETARG_NAME(3))),
                 quote_literal_cstr(text_argument(fcinfo, 6))),
        SPI_OK_SELECT, "measure recall");
    bool no_recall;
    const Datum recall = SPI_getbinval(SPI_tuptable->vals[0], SPI_tuptable->tupdesc, 1, &no_recall);
    const float8 measured = no_recall ? 0 : DatumGetFloat8(recall);
    SPI_finish();
    MemoryContextSwitchTo(context);
    Datum values[4] = {ObjectIdGetDatum(find_graph(graph)), Int64GetDatum(edges),
                       Float8GetDatum(seconds), Float8GetDatum(measured)};
    bool nulls[4] = {false, false, false, no_recall};
    return HeapTupleGetDatum(heap_form_tuple(descriptor, values, nulls));
}
