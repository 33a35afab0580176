// knn_graph_keep: the trigger of a graph that keeps itself current, and knn_graph_stop, its end.
//
// The trigger works with the rights of the table's owner, who must own the graph as well: others
// who may write to the table need no rights on the graph, and a trigger cannot reach a graph of
// another owner. Repairs of a graph exclude each other until the end of the transaction, and read
// with a snapshot that is taken afterwards, whatever the isolation level: each repair sees those
// before.

#include <algorithm>

#include "kernels/knn_graph.h"
#include "extension/graph/auto_lists.h"
#include "extension/graph/auto_repair.h"
#include "extension/graph/functions.h"
#include "extension/graph/index.h"
#include "extension/graph/metric.h"
#include "extension/graph/table.h"
#include "extension/util/signature.h"

extern "C" {
#include "access/htup_details.h"
#include "access/tableam.h"
#include "access/xact.h"
#include "catalog/pg_class.h"
#include "catalog/pg_type.h"
#include "commands/trigger.h"
#include "executor/spi.h"
#include "storage/lmgr.h"
#include "utils/builtins.h"
#include "utils/guc.h"
#include "utils/lsyscache.h"
#include "utils/rls.h"
#include "utils/snapmgr.h"
#include "utils/syscache.h"
}

namespace pgwarp {

namespace {

void check_trigger(FunctionCallInfo fcinfo) {
    if (!CALLED_AS_TRIGGER(fcinfo))
        ereport(ERROR, (errcode(ERRCODE_E_R_I_E_TRIGGER_PROTOCOL_VIOLATED),
                        errmsg("knn_graph_keep is a trigger of knn_graph_create")));
    const auto* data = reinterpret_cast<const TriggerData*>(fcinfo->context);
    if (!TRIGGER_FIRED_AFTER(data->tg_event) || !TRIGGER_FIRED_FOR_STATEMENT(data->tg_event) ||
        data->tg_trigger->tgnargs != 4 || !OidIsValid(table_of_trigger(data->tg_trigger->tgqual)))
        ereport(ERROR, (errcode(ERRCODE_E_R_I_E_TRIGGER_PROTOCOL_VIOLATED),
                        errmsg("trigger \"%s\" does not keep a graph", data->tg_trigger->tgname),
                        errhint("knn_graph_create(..., auto => true) makes triggers that do.")));
}

KeptGraph read_trigger(const TriggerData* data) {
    char** arguments = data->tg_trigger->tgargs;
    KeptGraph kept = {};
    kept.graph = table_of_trigger(data->tg_trigger->tgqual);
    kept.table = RelationGetRelid(data->tg_relation);
    kept.key = arguments[0];
    kept.vector = arguments[1];
    kept.metric = graph_metric_called(arguments[2]);
    const int32 k = pg_strtoint32(arguments[3]);
    check_neighbors(k);
    kept.k = static_cast<uint32>(k);
    return kept;
}

// Settings for the queries of a repair, until AtEOXact_GUC() with the level this returns: names
// mean what they say, lists are found by indexes, and searches do not depend on who writes.
int begin_settings() {
    constexpr const char* settings[][2] = {{"search_path", "pg_catalog, pg_temp"},
                                           {"ivfpq.probes", "0"},
                                           {"ivfpq.candidates", "0"},
                                           {"ivfpq.max_probes", "0"},
                                           {"ivfpq.max_scan_tuples", "0"},
                                           {"ivfpq.target_recall", "0.98"}};
    const int level = begin_keyed_queries();
    for (const auto& setting : settings)
        set_config_option(setting[0], setting[1], PGC_USERSET, PGC_S_SESSION, GUC_ACTION_SAVE, true,
                          0, false);
    return level;
}

// Keys of rows with a vector. Those of an update that kept key and vector are left out: lists do
// not depend on other columns. Compares images, as types of vectors and of keys may lie in any
// schema, and collations may be nondeterministic.
char* query_of_changed(const KeptGraph& kept, const TriggerData* data) {
    const char* key = quote_identifier(kept.key);
    const char* vector = quote_identifier(kept.vector);
    const auto keys_of = [&](const char* rows, const char* others) {
        const char* query =
            psprintf("SELECT %s::pg_catalog.%s FROM %s AS r WHERE %s IS NOT NULL", key,
                     kept.names ? "text" : "int8", quote_identifier(rows), vector);
        if (!others) return query;
        const char* form = kept.names ? "::pg_catalog.text COLLATE pg_catalog.\"C\"" : "";
        return static_cast<const char*>(
            psprintf("%s AND NOT EXISTS (SELECT FROM %s AS o WHERE (o.%s%s) "
                     "OPERATOR(pg_catalog.=) (r.%s%s) AND ROW(o.%s)::pg_catalog.record "
                     "OPERATOR(pg_catalog.*=) ROW(r.%s)::pg_catalog.record)",
                     query, quote_identifier(others), key, form, key, form, vector, vector));
    };
    const Trigger* trigger = data->tg_trigger;
    if (TRIGGER_FIRED_BY_INSERT(data->tg_event))
        return pstrdup(keys_of(trigger->tgnewtable, nullptr));
    if (TRIGGER_FIRED_BY_DELETE(data->tg_event))
        return pstrdup(keys_of(trigger->tgoldtable, nullptr));
    return psprintf("%s UNION ALL %s", keys_of(trigger->tgnewtable, trigger->tgoldtable),
                    keys_of(trigger->tgoldtable, trigger->tgnewtable));
}

struct ChangedKeys {
    int64* keys;  // sorted, none twice
    Size count;
};

void report_null_key(const KeptGraph& kept) {
    ereport(ERROR, (errcode(ERRCODE_NULL_VALUE_NOT_ALLOWED),
                    errmsg("column \"%s\" of table \"%s\" has a null key", kept.key,
                           get_rel_name(kept.table)),
                    errdetail("The row has a vector, which belongs to graph \"%s\".",
                              get_rel_name(kept.graph))));
}

ChangedKeys read_changed(const KeptGraph& kept, TriggerData* data) {
    constexpr long at_once = 10000;
    if (SPI_register_trigger_data(data) != SPI_OK_TD_REGISTER)
        elog(ERROR, "could not read the rows of a trigger");
    ChangedKeys changed = {static_cast<int64*>(palloc(sizeof(int64) * at_once)), 0};
    Size room = at_once;
    SPIPlanPtr plan = SPI_prepare(query_of_changed(kept, data), 0, nullptr);
    if (!plan) elog(ERROR, "SPI_prepare failed: %s", SPI_result_code_string(SPI_result));
    const Portal portal = SPI_cursor_open(nullptr, plan, nullptr, nullptr, true);
    do {
        CHECK_FOR_INTERRUPTS();
        SPI_cursor_fetch(portal, true, at_once);
        if (changed.count + SPI_processed > room) {
            room = 2 * (changed.count + SPI_processed);
            changed.keys = static_cast<int64*>(repalloc_huge(changed.keys, room * sizeof(int64)));
        }
        for (uint64 i = 0; i < SPI_processed; ++i) {
            bool is_null;
            const Datum key =
                SPI_getbinval(SPI_tuptable->vals[i], SPI_tuptable->tupdesc, 1, &is_null);
            if (is_null) report_null_key(kept);
            changed.keys[changed.count++] = key_of(kept.names, key, kept.names ? TEXTOID : INT8OID);
        }
        SPI_freetuptable(SPI_tuptable);
    } while (SPI_processed > 0);
    SPI_cursor_close(portal);
    changed.count = sort_keys(changed.keys, changed.count);
    return changed;
}

// Invalid: the relation was removed.
Oid owner_of(Oid relation) {
    HeapTuple tuple = SearchSysCache1(RELOID, ObjectIdGetDatum(relation));
    if (!HeapTupleIsValid(tuple)) return InvalidOid;
    const Oid owner = reinterpret_cast<Form_pg_class>(GETSTRUCT(tuple))->relowner;
    ReleaseSysCache(tuple);
    return owner;
}

// Not by a lock of the graph's table, which would keep VACUUM out, or end it, at each statement.
// The lock that is taken behind it excludes knn_graph_append().
void lock_kept_graph(const KeptGraph& kept) {
    LockDatabaseObject(RelationRelationId, kept.graph, 0, ExclusiveLock);
    LockRelationOid(kept.graph, RowExclusiveLock);
    if (!get_rel_name(kept.graph))
        ereport(ERROR, (errcode(ERRCODE_UNDEFINED_TABLE),
                        errmsg("relation with OID %u does not exist", kept.graph),
                        errdetail("The graph was removed by another transaction.")));
}

void check_before_repair(const KeptGraph& kept, Oid function) {
    const Oid owner = owner_of(kept.graph);
    check_kept_table(kept, owner);
    check_agreement(kept, function);
    if (check_enable_rls(kept.graph, owner, true) == RLS_ENABLED)
        ereport(ERROR, (errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
                        errmsg("a repair needs all rows of graph \"%s\"", get_rel_name(kept.graph)),
                        errdetail("Policies of row security hide some from its owner.")));
    check_graph_table(kept.graph, kept.names);
}

// Whether it costs less to bring the graph up to date as a whole. That works with the snapshot of
// the transaction, which must be a new one.
bool is_most_of_table(const KeptGraph& kept, Relation table, Size changed) {
    constexpr Size least = 1000;
    constexpr double share = 0.05;
    if (changed <= least || IsolationUsesXactSnapshot()) return false;
    if (!OidIsValid(kept.index)) return true;
    BlockNumber pages;
    double rows, visible;
    table_relation_estimate_size(table, nullptr, &pages, &rows, &visible);
    return static_cast<double>(changed) > share * rows;
}

void append_to_graph(const KeptGraph& kept, Oid function) {
    const char* schema = quote_identifier(get_namespace_name(get_func_namespace(function)));
    const char* query = psprintf(
        "SELECT %s.knn_graph_append(%u::pg_catalog.oid::pg_catalog.regclass, "
        "%u::pg_catalog.oid::pg_catalog.regclass, %s::pg_catalog.name, %s::pg_catalog.name, "
        "%u::pg_catalog.int4, %s::pg_catalog.text)",
        schema, kept.graph, kept.table, quote_literal_cstr(kept.key),
        quote_literal_cstr(kept.vector), kept.k, quote_literal_cstr(sql_name(kept.metric)));
    if (SPI_execute(query, false, 0) != SPI_OK_SELECT) elog(ERROR, "could not append to a graph");
}

void empty_graph(const KeptGraph& kept) {
    const char* query = psprintf("TRUNCATE TABLE ONLY %s", qualified_name(kept.graph));
    if (SPI_execute(query, false, 0) != SPI_OK_UTILITY) elog(ERROR, "could not empty a graph");
}

// Inside SPI, as the table's owner.
void keep_graph(TriggerData* data) {
    KeptGraph kept = read_trigger(data);
    CommandCounterIncrement();
    PushActiveSnapshot(GetLatestSnapshot());
    // Also before locks are taken: whoever may add triggers to a table could name any graph.
    const Oid owner = owner_of(kept.graph);
    check_kept_table(kept, OidIsValid(owner) ? owner : owner_of(kept.table));
    kept.names = names_in_graph(kept.graph);
    const bool empties = TRIGGER_FIRED_BY_TRUNCATE(data->tg_event);
    const ChangedKeys changed = empties ? ChangedKeys{} : read_changed(kept, data);
    PopActiveSnapshot();
    if (!empties && changed.count == 0) return;
    lock_kept_graph(kept);
    // Sees what was committed while this backend waited.
    PushActiveSnapshot(GetLatestSnapshot());
    check_before_repair(kept, data->tg_trigger->tgfoid);
    TableColumns columns = {kept.table, kept.vector, kept.key};
    if (can_index(kept.metric)) kept.index = look_for_graph_index(columns, kept.metric);
    if (empties)
        empty_graph(kept);
    else if (is_most_of_table(kept, data->tg_relation, changed.count))
        append_to_graph(kept, data->tg_trigger->tgfoid);
    else
        repair_graph(kept, changed.keys, changed.count);
    PopActiveSnapshot();
}

}  // namespace

}  // namespace pgwarp

using namespace pgwarp;

PGWARP_FUNCTION(pgwarp_knn_graph_keep) {
    check_trigger(fcinfo);
    auto* data = reinterpret_cast<TriggerData*>(fcinfo->context);
    Oid user;
    int security;
    GetUserIdAndSecContext(&user, &security);
    SetUserIdAndSecContext(data->tg_relation->rd_rel->relowner,
                           security | SECURITY_LOCAL_USERID_CHANGE);
    const int level = begin_settings();
    if (SPI_connect() != SPI_OK_CONNECT) elog(ERROR, "SPI_connect failed");
    keep_graph(data);
    SPI_finish();
    AtEOXact_GUC(false, level);
    SetUserIdAndSecContext(user, security);
    return PointerGetDatum(nullptr);
}

PGWARP_FUNCTION(pgwarp_knn_graph_stop) {
    check_signature(fcinfo, 1, 0);
    const Oid graph = PG_GETARG_OID(0);
    const char* schema =
        quote_identifier(get_namespace_name(get_func_namespace(fcinfo->flinfo->fn_oid)));
    if (SPI_connect() != SPI_OK_CONNECT) elog(ERROR, "SPI_connect failed");
    // Triggers that others have on their tables are theirs to drop; without the graph's own they do
    // nothing.
    const char* query = psprintf(
        "SELECT t.tgname::pg_catalog.text, t.tgrelid FROM pg_catalog.pg_trigger AS t "
        "JOIN pg_catalog.pg_class AS c ON c.oid OPERATOR(pg_catalog.=) t.tgrelid "
        "WHERE t.tgfoid OPERATOR(pg_catalog.=) %s::pg_catalog.regprocedure "
        "AND (t.tgrelid OPERATOR(pg_catalog.=) %u OR pg_catalog.pg_has_role(c.relowner, 'USAGE') "
        "AND t.oid OPERATOR(pg_catalog.=) ANY (SELECT "
        "d.objid FROM pg_catalog.pg_depend AS d "
        "WHERE d.refclassid OPERATOR(pg_catalog.=) 'pg_catalog.pg_class'::pg_catalog.regclass AND "
        "d.refobjid OPERATOR(pg_catalog.=) %u AND d.classid OPERATOR(pg_catalog.=) "
        "'pg_catalog.pg_trigger'::pg_catalog.regclass))",
        quote_literal_cstr(psprintf("%s.knn_graph_keep()", schema)), graph, graph);
    if (SPI_execute(query, false, 0) != SPI_OK_SELECT) elog(ERROR, "could not find triggers");
    const uint64 count = SPI_processed;
    const SPITupleTable* found = SPI_tuptable;
    for (uint64 i = 0; i < count; ++i) {
        bool is_null;
        const char* name = SPI_getvalue(found->vals[i], found->tupdesc, 1);
        const Oid table =
            DatumGetObjectId(SPI_getbinval(found->vals[i], found->tupdesc, 2, &is_null));
        const char* drop =
            psprintf("DROP TRIGGER %s ON %s", quote_identifier(name), qualified_name(table));
        if (SPI_execute(drop, false, 0) != SPI_OK_UTILITY) elog(ERROR, "could not: %s", drop);
    }
    SPI_finish();
    PG_RETURN_BOOL(count > 0);
}
