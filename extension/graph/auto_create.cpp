// The triggers that keep a graph current, and what their table has to be.
//
// A trigger names its graph in its condition: WHEN ('g'::regclass IS NOT NULL). PostgreSQL records
// that it depends on the graph, follows renames, and dumps the name the graph has then. An
// automatic dependency beside it lets DROP TABLE g take the triggers along.

#include <algorithm>
#include <cstring>

#include "kernels/knn_graph.h"
#include "extension/graph/auto.h"
#include "extension/graph/index.h"
#include "extension/graph/table.h"
#include "extension/table/planned.h"
#include "extension/types/vector_type.h"

extern "C" {
#include "access/htup_details.h"
#include "access/relation.h"
#include "catalog/dependency.h"
#include "catalog/pg_class.h"
#include "catalog/pg_index.h"
#include "catalog/pg_inherits.h"
#include "catalog/pg_trigger.h"
#include "catalog/pg_type.h"
#include "commands/defrem.h"
#include "commands/trigger.h"
#include "executor/spi.h"
#include "nodes/nodeFuncs.h"
#include "utils/builtins.h"
#include "utils/lsyscache.h"
#include "utils/rel.h"
#include "utils/rls.h"
#include "utils/syscache.h"
}

namespace pgwarp {

namespace {

[[noreturn]] void refuse_table(Oid table, const char* detail) {
    ereport(ERROR, (errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
                    errmsg("no trigger can keep a graph of \"%s\" current", get_rel_name(table)),
                    errdetail("%s", detail),
                    errhint("Bring the graph up to date with knn_graph_append().")));
    pg_unreachable();
}

void check_column(const KeptGraph& kept, const char* name) {
    if (get_attnum(kept.table, name) > 0) return;
    const char* graph = OidIsValid(kept.graph) ? get_rel_name(kept.graph) : nullptr;
    ereport(ERROR,
            (errcode(ERRCODE_UNDEFINED_COLUMN),
             errmsg("column \"%s\" of table \"%s\" does not exist", name, get_rel_name(kept.table)),
             graph ? errdetail("Triggers keep graph \"%s\" by this column.", graph) : 0,
             graph ? errhint("Give the column its name again, or end them with knn_graph_stop().")
                   : 0));
}

// A repair names rows by their keys: none may be there twice, not even within a transaction.
bool is_unique_index(Oid index, AttrNumber column) {
    HeapTuple tuple = SearchSysCache1(INDEXRELID, ObjectIdGetDatum(index));
    if (!HeapTupleIsValid(tuple)) return false;
    const auto& form = *reinterpret_cast<Form_pg_index>(GETSTRUCT(tuple));
    const bool fits = form.indisunique && form.indimmediate && form.indisvalid &&
                      form.indnkeyatts == 1 && form.indkey.values[0] == column &&
                      heap_attisnull(tuple, Anum_pg_index_indpred, nullptr);
    ReleaseSysCache(tuple);
    return fits;
}

void check_unique(const KeptGraph& kept, Relation table) {
    const AttrNumber column = get_attnum(kept.table, kept.key);
    List* indexes = RelationGetIndexList(table);
    bool found = false;
    ListCell* cell;
    foreach (cell, indexes) found = found || is_unique_index(lfirst_oid(cell), column);
    list_free(indexes);
    if (!found)
        ereport(ERROR,
                (errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
                 errmsg("column \"%s\" of table \"%s\" has no unique index of its own", kept.key,
                        get_rel_name(kept.table)),
                 errdetail("A graph that keeps itself current finds rows by their keys."),
                 errhint("Make the column the primary key, or UNIQUE, and not DEFERRABLE.")));
}

// A search for a key would find another one.
void check_collation(const KeptGraph& kept) {
    Oid type, collation;
    int32 typmod;
    get_atttypetypmodcoll(kept.table, get_attnum(kept.table, kept.key), &type, &typmod, &collation);
    if (OidIsValid(collation) && !get_collation_isdeterministic(collation))
        ereport(ERROR, (errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
                        errmsg("column \"%s\" of table \"%s\" has a nondeterministic collation",
                               kept.key, get_rel_name(kept.table)),
                        errdetail("It does not tell all keys apart.")));
}

void check_owner(const KeptGraph& kept, Relation table, Oid owner) {
    if (table->rd_rel->relowner == owner) return;
    ereport(ERROR,
            (errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
             errmsg("a graph that keeps itself current needs the owner of its table"),
             errdetail("Table \"%s\" belongs to \"%s\", the graph to \"%s\".",
                       get_rel_name(kept.table), GetUserNameFromId(table->rd_rel->relowner, true),
                       GetUserNameFromId(owner, true)),
             errhint("Let both have one owner, by SET ROLE or ALTER TABLE ... OWNER TO.")));
}

}  // namespace

void check_kept_table(const KeptGraph& kept, Oid owner) {
    Relation table = relation_open(kept.table, AccessShareLock);
    const auto& form = *table->rd_rel;
    if (form.relkind != RELKIND_RELATION) refuse_table(kept.table, "It is not an ordinary table.");
    if (form.relispartition || has_superclass(kept.table))
        refuse_table(kept.table, "Statements on a parent change its rows without its triggers.");
    if (find_inheritance_children(kept.table, NoLock) != NIL)
        refuse_table(kept.table, "Statements on its children change rows without its triggers.");
    check_owner(kept, table, owner);
    // The owner's rights are those of the repair.
    if (check_enable_rls(kept.table, owner, true) == RLS_ENABLED)
        ereport(ERROR, (errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
                        errmsg("a graph that keeps itself current needs all rows of table \"%s\"",
                               get_rel_name(kept.table)),
                        errdetail("Policies of row security hide some from its owner."),
                        errhint("Use ALTER TABLE ... NO FORCE ROW LEVEL SECURITY.")));
    check_column(kept, kept.key);
    check_column(kept, kept.vector);
    check_collation(kept);
    check_unique(kept, table);
    relation_close(table, AccessShareLock);
}

void check_kept_graph(const KeptGraph& kept) {
    if (where_rows_are(kept.table) != RowsAre::in_table)
        refuse_table(kept.table, "Another extension keeps its rows.");
    const char of_table = get_rel_persistence(kept.table);
    if (of_table == get_rel_persistence(kept.graph)) return;
    ereport(ERROR, (errcode(ERRCODE_INVALID_TABLE_DEFINITION),
                    errmsg("a graph that keeps itself current must last as long as its table"),
                    errdetail("Table \"%s\" is %s.", get_rel_name(kept.table),
                              of_table == RELPERSISTENCE_PERMANENT  ? "permanent"
                              : of_table == RELPERSISTENCE_UNLOGGED ? "unlogged"
                                                                    : "temporary")));
}

namespace {

struct TriggerKind {
    const char* suffix;
    const char* event;
    const char* rows;  // transition tables
    const char* level;
    const char* condition;  // of the other table's OID
};

// The last is never called: PostgreSQL lets no table with such a trigger become a partition or a
// child, whose rows change without a call of the others.
constexpr TriggerKind kinds_on_table[] = {
    {"insert", "INSERT", "REFERENCING NEW TABLE AS new_rows ", "STATEMENT", "IS NOT NULL"},
    {"update", "UPDATE", "REFERENCING OLD TABLE AS old_rows NEW TABLE AS new_rows ", "STATEMENT",
     "IS NOT NULL"},
    {"delete", "DELETE", "REFERENCING OLD TABLE AS old_rows ", "STATEMENT", "IS NOT NULL"},
    {"truncate", "TRUNCATE", "", "STATEMENT", "IS NOT NULL"},
    {"guard", "INSERT", "REFERENCING NEW TABLE AS new_rows ", "ROW", "IS NULL"},
};
// Never called either. It names the table, and only who may add triggers to the graph adds it: with
// it the graph's side agrees, which a trigger on the table alone does not show.
constexpr TriggerKind kind_on_graph = {"source", "TRUNCATE", "", "STATEMENT", "IS NULL"};

void run_utility(const char* query) {
    if (SPI_execute(query, false, 0) != SPI_OK_UTILITY) elog(ERROR, "could not run: %s", query);
}

// A name that no trigger of the table has.
char* trigger_name(const KeptGraph& kept, Oid table, const char* suffix) {
    const char* graph = get_rel_name(kept.graph);
    char* name = makeObjectName(graph, nullptr, suffix);
    for (int i = 1; OidIsValid(get_trigger_oid(table, name, true)); ++i)
        name = makeObjectName(graph, nullptr, psprintf("%s%d", suffix, i));
    return name;
}

void add_trigger(const KeptGraph& kept, const char* schema, const TriggerKind& kind) {
    const bool on_graph = &kind == &kind_on_graph;
    const Oid table = on_graph ? kept.graph : kept.table;
    const Oid named = on_graph ? kept.table : kept.graph;
    const char* name = trigger_name(kept, table, kind.suffix);
    run_utility(
        psprintf("CREATE TRIGGER %s AFTER %s ON %s %sFOR EACH %s WHEN (%s::pg_catalog.regclass %s) "
                 "EXECUTE FUNCTION %s.knn_graph_keep(%s, %s, %s, '%u')",
                 quote_identifier(name), kind.event, qualified_name(table), kind.rows, kind.level,
                 quote_literal_cstr(qualified_name(named)), kind.condition, schema,
                 quote_literal_cstr(kept.key), quote_literal_cstr(kept.vector),
                 quote_literal_cstr(sql_name(kept.metric)), kept.k));
    CommandCounterIncrement();
    ObjectAddress trigger, other;
    ObjectAddressSet(trigger, TriggerRelationId, get_trigger_oid(table, name, false));
    ObjectAddressSet(other, RelationRelationId, named);
    recordDependencyOn(&trigger, &other, DEPENDENCY_AUTO);
}

}  // namespace

void add_triggers(const KeptGraph& kept, const char* schema) {
    run_utility(psprintf("CREATE INDEX ON %s %s", qualified_name(kept.graph),
                         is_compact_graph(kept.graph) ? "USING gin (neighbors)" : "(dst)"));
    for (const TriggerKind& kind : kinds_on_table) add_trigger(kept, schema, kind);
    add_trigger(kept, schema, kind_on_graph);
    CommandCounterIncrement();
    TableColumns columns = {kept.table, kept.vector, kept.key};
    if (!can_index(kept.metric) || !OidIsValid(look_for_graph_index(columns, kept.metric)))
        ereport(NOTICE, (errmsg("table \"%s\" has no ivfpq index on column \"%s\" for this metric",
                                get_rel_name(kept.table), kept.vector),
                         errdetail("Each statement that changes vectors reads the whole table.")));
}

Oid table_of_trigger(const char* condition) {
    if (!condition) return InvalidOid;
    const Node* node = static_cast<const Node*>(stringToNode(condition));
    if (!IsA(node, NullTest)) return InvalidOid;
    const Node* tested =
        reinterpret_cast<const Node*>(reinterpret_cast<const NullTest*>(node)->arg);
    if (!IsA(tested, Const)) return InvalidOid;
    const auto* value = reinterpret_cast<const Const*>(tested);
    return value->consttype == REGCLASSOID && !value->constisnull
               ? DatumGetObjectId(value->constvalue)
               : InvalidOid;
}

namespace {

// Whether the trigger of the graph is of this table, column, metric and k.
bool agrees(const KeptGraph& kept, const Trigger& trigger) {
    const char* wanted[] = {kept.key, kept.vector, sql_name(kept.metric), psprintf("%u", kept.k)};
    if (table_of_trigger(trigger.tgqual) != kept.table || trigger.tgnargs != lengthof(wanted))
        return false;
    return std::equal(trigger.tgargs, trigger.tgargs + trigger.tgnargs, wanted,
                      [](const char* a, const char* b) { return strcmp(a, b) == 0; });
}

}  // namespace

void check_agreement(const KeptGraph& kept, Oid function) {
    Relation graph = relation_open(kept.graph, NoLock);
    const TriggerDesc* triggers = graph->trigdesc;
    bool found = false;
    for (int i = 0; triggers && i < triggers->numtriggers; ++i) {
        const Trigger& trigger = triggers->triggers[i];
        found = found || (trigger.tgfoid == function && agrees(kept, trigger));
    }
    relation_close(graph, NoLock);
    if (!found)
        ereport(ERROR,
                (errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
                 errmsg("graph \"%s\" is not kept by table \"%s\"", get_rel_name(kept.graph),
                        get_rel_name(kept.table)),
                 errdetail("It has no trigger that names the table, its columns, metric and k."),
                 errhint("Make the graph with knn_graph_create(..., auto => true), or drop "
                         "the table's trigger.")));
}

}  // namespace pgwarp
