#include <algorithm>

#include "extension/index/column.h"
#include "extension/knn/query.h"
#include "extension/scan/rows.h"

extern "C" {
#include "access/htup_details.h"
#include "catalog/pg_inherits.h"
#include "catalog/pg_operator.h"
#include "catalog/pg_type.h"
#include "executor/spi.h"
#include "utils/builtins.h"
#include "utils/lsyscache.h"
#include "utils/syscache.h"
}

namespace pgwarp {

struct KnnQuery {
    const KnnIndex* index;
    uint32 k;
    SPIPlanPtr plan;
    // Parameters: the vector, then the values to equal.
    Datum* parameters;
    MemoryContext context;  // of one run
};

namespace {

// OPERATOR(schema.<->)
char* operator_text(Relation index) {
    const Oid type = index->rd_opcintype[0];
    const Oid number = get_opfamily_member(index->rd_opfamily[0], type, type, 1);
    HeapTuple tuple = SearchSysCache1(OPEROID, ObjectIdGetDatum(number));
    if (!HeapTupleIsValid(tuple)) elog(ERROR, "cache lookup failed for operator %u", number);
    const Form_pg_operator form = reinterpret_cast<Form_pg_operator>(GETSTRUCT(tuple));
    char* text =
        psprintf("OPERATOR(%s.%s)", quote_identifier(get_namespace_name(form->oprnamespace)),
                 NameStr(form->oprname));
    ReleaseSysCache(tuple);
    return text;
}

// Of a partitioned table, a place alone does not identify a row.
bool tells_table(const KnnIndex& index) {
    return index.partitioned && !index.key_attribute;
}

const char* query_text(const KnnIndex& index, uint32 k) {
    const Oid table = RelationGetRelid(index.heap);
    const auto column = [table](AttrNumber attribute) {
        return quote_identifier(get_attname(table, attribute, false));
    };
    const char* vector = column(index.vector_attribute);
    const char* distance = psprintf("%s %s $1", vector, operator_text(index.index));
    StringInfoData text;
    initStringInfo(&text);
    if (index.key_attribute)
        appendStringInfo(&text, "SELECT %s::pg_catalog.%s", column(index.key_attribute),
                         index.names ? "text" : "int8");
    else
        appendStringInfoString(&text, "SELECT ctid");
    appendStringInfo(&text, ", %s%s", distance, tells_table(index) ? ", tableoid" : "");
    // Not every extension that plans queries by itself knows ONLY.
    const bool has_children = !index.partitioned && has_subclass(table);
    appendStringInfo(
        &text, " FROM %s%s WHERE %s IS NOT NULL", has_children ? "ONLY " : "",
        quote_qualified_identifier(get_namespace_name(RelationGetNamespace(index.heap)),
                                   RelationGetRelationName(index.heap)),
        vector);
    for (int i = 0; i < index.equal_count; ++i)
        appendStringInfo(&text, " AND %s = $%d", column(index.equals[i].attribute), i + 2);
    // The line ends a comment that the condition may end with.
    if (index.condition) appendStringInfo(&text, " AND (%s\n)", index.condition);
    appendStringInfo(&text, " ORDER BY %s LIMIT %u", distance, k);
    return text.data;
}

}  // namespace

KnnQuery* open_knn_query(const KnnIndex& index, uint32 k) {
    auto* query = static_cast<KnnQuery*>(palloc0(sizeof(KnnQuery)));
    query->index = &index;
    query->k = k;
    const int count = 1 + index.equal_count;
    query->parameters = static_cast<Datum*>(palloc0(static_cast<Size>(count) * sizeof(Datum)));
    query->context = AllocSetContextCreate(CurrentMemoryContext, "knn query", ALLOCSET_SMALL_SIZES);
    Oid* types = static_cast<Oid*>(palloc(static_cast<Size>(count) * sizeof(Oid)));
    types[0] = index.index->rd_opcintype[0];
    for (int i = 1; i < count; ++i) types[i] = index.equals[i - 1].type;
    const char* text = query_text(index, k);

    const MemoryContext before = CurrentMemoryContext;
    if (SPI_connect() != SPI_OK_CONNECT) elog(ERROR, "SPI_connect failed");
    query->plan = SPI_prepare_cursor(text, count, types, CURSOR_OPT_PARALLEL_OK);
    if (!query->plan) elog(ERROR, "SPI_prepare failed: %s", SPI_result_code_string(SPI_result));
    MemoryContextSwitchTo(before);
    return query;
}

void close_knn_query(KnnQuery* query) {
    const MemoryContext before = CurrentMemoryContext;
    SPI_finish();
    MemoryContextSwitchTo(before);
    MemoryContextDelete(query->context);
}

uint32 run_knn_query(KnnQuery* query, const float* vector, const KnnValues& equal, KnnRow* rows) {
    const KnnIndex& index = *query->index;
    // Nothing equals null.
    if (std::any_of(equal.nulls, equal.nulls + index.equal_count, [](bool null) { return null; }))
        return 0;
    MemoryContextReset(query->context);
    const MemoryContext before = MemoryContextSwitchTo(query->context);
    query->parameters[0] = type_of(index.index).make(vector, index.dims);
    std::copy_n(equal.values, index.equal_count, query->parameters + 1);
    if (SPI_execute_plan(query->plan, query->parameters, nullptr, true, query->k) != SPI_OK_SELECT)
        elog(ERROR, "SPI_execute failed: %s", SPI_result_code_string(SPI_result));
    const uint32 count = static_cast<uint32>(SPI_processed);
    for (uint32 i = 0; i < count; ++i) {
        const HeapTuple tuple = SPI_tuptable->vals[i];
        bool distance_is_null;
        KnnRow row = {};
        const Datum key = SPI_getbinval(tuple, SPI_tuptable->tupdesc, 1, &row.key_is_null);
        if (!index.key_attribute)
            row.place = *reinterpret_cast<ItemPointer>(DatumGetPointer(key));
        else if (!row.key_is_null)
            row.key = key_of(index.names, key, index.names ? TEXTOID : INT8OID);
        row.distance = ranked_distance(
            DatumGetFloat8(SPI_getbinval(tuple, SPI_tuptable->tupdesc, 2, &distance_is_null)));
        bool table_is_null;
        row.table =
            tells_table(index)
                ? DatumGetObjectId(SPI_getbinval(tuple, SPI_tuptable->tupdesc, 3, &table_is_null))
                : RelationGetRelid(index.heap);
        rows[i] = row;
    }
    SPI_freetuptable(SPI_tuptable);
    MemoryContextSwitchTo(before);
    return count;
}

}  // namespace pgwarp
