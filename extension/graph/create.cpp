// knn_graph_create: writes a graph to a new table, adds a primary key, and measures its recall.

#include <cstring>

#include "extension/graph/functions.h"
#include "extension/graph/table.h"
#include "extension/util/signature.h"

extern "C" {
#include "access/htup_details.h"
#include "catalog/namespace.h"
#include "catalog/pg_type.h"
#include "executor/spi.h"
#include "utils/builtins.h"
#include "utils/lsyscache.h"
#include "utils/regproc.h"
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

// An integer argument as an SQL literal.
char* constant_or_null(FunctionCallInfo fcinfo, int number) {
    return PG_ARGISNULL(number) ? pstrdup("NULL") : psprintf("%d", PG_GETARG_INT32(number));
}

}  // namespace

}  // namespace pgwarp

using namespace pgwarp;

PGWARP_FUNCTION(pgwarp_knn_graph_create) {
    check_signature(fcinfo, 11, 4);
    constexpr const char* names[] = {"graph", "table",  "key",   "vector_column",
                                     "k",     "method", "metric"};
    refuse_null_arguments(fcinfo, names, lengthof(names));
    TupleDesc descriptor;
    if (get_call_result_type(fcinfo, nullptr, &descriptor) != TYPEFUNC_COMPOSITE)
        elog(ERROR, "return type must be a row type");
    descriptor = BlessTupleDesc(descriptor);
    const MemoryContext context = CurrentMemoryContext;
    const RangeVar* name = makeRangeVarFromNameList(
        textToQualifiedNameList(cstring_to_text(text_argument(fcinfo, 0))));
    // Qualified from here on: search_path could resolve the bare name to another schema.
    const Oid place = RangeVarGetCreationNamespace(name);
    char* graph = quote_qualified_identifier(get_namespace_name(place), name->relname);
    if (OidIsValid(get_relname_relid(name->relname, place)))
        ereport(ERROR, (errcode(ERRCODE_DUPLICATE_TABLE),
                        errmsg("relation \"%s\" already exists", name->relname),
                        errhint("Choose another name, drop it first, or bring a graph up to date "
                                "with knn_graph_append().")));
    const Oid table = PG_GETARG_OID(1);
    if (!get_rel_name(table))
        ereport(ERROR, (errcode(ERRCODE_UNDEFINED_TABLE),
                        errmsg("relation with OID %u does not exist", table)));
    const char* schema =
        quote_identifier(get_namespace_name(get_func_namespace(fcinfo->flinfo->fn_oid)));
    const char* key = quote_literal_cstr(NameStr(*PG_GETARG_NAME(2)));
    const char* vector_column = quote_literal_cstr(NameStr(*PG_GETARG_NAME(3)));
    const char* metric = quote_literal_cstr(text_argument(fcinfo, 6));
    // The graph's columns have the type of the keys.
    const char* type = key_type_name(table, NameStr(*PG_GETARG_NAME(2)));
    const char* function = strcmp(type, "int8") == 0 ? "knn_graph" : "knn_graph_text";

    if (SPI_connect() != SPI_OK_CONNECT) elog(ERROR, "SPI_connect failed");
    const TimestampTz begin = GetCurrentTimestamp();
    const char* literal = quote_literal_cstr(qualified_name(table));
    execute(psprintf("CREATE TABLE %s AS SELECT src::pg_catalog.%s AS src, rank, "
                     "dst::pg_catalog.%s AS dst, distance FROM %s.%s(%s::pg_catalog.regclass, "
                     "%s::pg_catalog.name, %s::pg_catalog.name, %d::pg_catalog.int4, "
                     "%s::pg_catalog.text, %s::pg_catalog.text, %s::pg_catalog.int4, "
                     "%s::pg_catalog.int4, %s::pg_catalog.int4, %s::pg_catalog.int4)",
                     graph, type, type, schema, function, literal, key, vector_column,
                     PG_GETARG_INT32(4), quote_literal_cstr(text_argument(fcinfo, 5)), metric,
                     constant_or_null(fcinfo, 7), constant_or_null(fcinfo, 8),
                     constant_or_null(fcinfo, 9), constant_or_null(fcinfo, 10)),
            SPI_OK_UTILITY, "make the graph");
    const uint64 edges = SPI_processed;
    execute(psprintf("ALTER TABLE %s ADD PRIMARY KEY (src, rank)", graph), SPI_OK_UTILITY,
            "add a primary key");
    const float8 seconds = static_cast<float8>(GetCurrentTimestamp() - begin) / USECS_PER_SEC;
    execute(psprintf("SELECT %s.knn_graph_recall(%s::pg_catalog.regclass, "
                     "%s::pg_catalog.regclass, %s::pg_catalog.name, %s::pg_catalog.name, "
                     "100::pg_catalog.int4, %s::pg_catalog.text)",
                     schema, quote_literal_cstr(graph), literal, key, vector_column, metric),
            SPI_OK_SELECT, "measure recall");
    bool no_recall;
    const Datum recall = SPI_getbinval(SPI_tuptable->vals[0], SPI_tuptable->tupdesc, 1, &no_recall);
    const float8 measured = no_recall ? 0 : DatumGetFloat8(recall);
    SPI_finish();
    MemoryContextSwitchTo(context);
    const Oid created = get_relname_relid(name->relname, place);
    Datum values[4] = {ObjectIdGetDatum(created), Int64GetDatum(static_cast<int64>(edges)),
                       Float8GetDatum(seconds), Float8GetDatum(measured)};
    bool nulls[4] = {false, false, false, no_recall};
    return HeapTupleGetDatum(heap_form_tuple(descriptor, values, nulls));
}
