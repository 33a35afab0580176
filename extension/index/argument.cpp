#include "extension/index/options.h"
#include "extension/index/argument.h"
#include "extension/table/planned.h"

extern "C" {
#include "access/genam.h"
#include "access/relation.h"
#include "access/table.h"
#include "access/xlog.h"
#include "catalog/index.h"
#include "catalog/pg_class.h"
#include "catalog/pg_inherits.h"
#include "miscadmin.h"
#include "utils/acl.h"
#include "utils/guc.h"
#include "utils/lsyscache.h"
#include "utils/rls.h"
}

namespace pgwarp {

Oid table_of(Oid relation) {
    const Oid table = IndexGetRelation(relation, true);
    if (OidIsValid(table)) return table;
    const char* name = get_rel_name(relation);
    if (!name)
        ereport(ERROR, (errcode(ERRCODE_UNDEFINED_TABLE),
                        errmsg("relation with OID %u does not exist", relation)));
    const char kind = get_rel_relkind(relation);
    const bool is_table =
        kind == RELKIND_RELATION || kind == RELKIND_PARTITIONED_TABLE || kind == RELKIND_MATVIEW;
    ereport(ERROR,
            (errcode(ERRCODE_WRONG_OBJECT_TYPE), errmsg("\"%s\" is not an ivfpq index", name),
             is_table ? errhint("It is a table: name its index.") : 0,
             kind == RELKIND_FOREIGN_TABLE
                 ? errhint("It is a foreign table: its index is on the server that has the table. "
                           "Call the function there.")
                 : 0,
             kind == RELKIND_VIEW ? errhint("It is a view: name the index of its table.") : 0));
}

void check_index(Relation index, Partitioned partitioned) {
    const bool is_partitioned = index->rd_rel->relkind == RELKIND_PARTITIONED_INDEX;
    if (!is_ivfpq(index))
        ereport(ERROR, (errcode(ERRCODE_WRONG_OBJECT_TYPE),
                        errmsg("\"%s\" is not an ivfpq index", RelationGetRelationName(index))));
    if (is_partitioned && partitioned == Partitioned::refused)
        ereport(ERROR,
                (errcode(ERRCODE_WRONG_OBJECT_TYPE),
                 errmsg("\"%s\" is a partitioned index", RelationGetRelationName(index)),
                 errhint("Name the index of a partition, as pg_partition_tree() lists them.")));
    if (!index->rd_index->indisvalid)
        ereport(ERROR,
                (errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
                 errmsg("index \"%s\" is not valid", RelationGetRelationName(index)),
                 is_partitioned ? errdetail("Not all partitions have a valid index of it.") : 0,
                 is_partitioned ? errhint("Create the missing indexes and attach them by ALTER "
                                          "INDEX ... ATTACH PARTITION.")
                                : errhint("Please REINDEX it.")));
    if (RELATION_IS_OTHER_TEMP(index))
        ereport(ERROR, (errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
                        errmsg("cannot access temporary indexes of other sessions")));
    if (RecoveryInProgress() && !RelationIsPermanent(index))
        ereport(ERROR, (errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
                        errmsg("cannot access temporary or unlogged relations during recovery")));
}

IndexLeaves find_leaves(Relation table, Relation index) {
    // Tables before indexes, as in all of PostgreSQL.
    List* tables = find_all_inheritors(RelationGetRelid(table), AccessShareLock, nullptr);
    List* indexes = find_all_inheritors(RelationGetRelid(index), AccessShareLock, nullptr);
    IndexLeaves found = {};
    found.leaves =
        static_cast<IndexLeaf*>(palloc(static_cast<Size>(list_length(tables)) * sizeof(IndexLeaf)));
    ListCell* cell;
    foreach (cell, tables) {
        const Oid leaf = lfirst_oid(cell);
        if (get_rel_relkind(leaf) == RELKIND_PARTITIONED_TABLE) continue;
        found.leaves[found.count++] = {leaf, InvalidOid};
    }
    foreach (cell, indexes) {
        const Oid table_of_leaf = IndexGetRelation(lfirst_oid(cell), true);
        for (int i = 0; i < found.count; ++i)
            if (found.leaves[i].table == table_of_leaf) found.leaves[i].index = lfirst_oid(cell);
    }
    list_free(tables);
    list_free(indexes);
    return found;
}

namespace {

void check_rights(Oid table, Purpose purpose) {
    const Oid user = GetUserId();
    if (purpose == Purpose::maintain) {
        if (!compat_may_maintain(table, user))
            aclcheck_error(ACLCHECK_NOT_OWNER, OBJECT_TABLE, get_rel_name(table));
        return;
    }
    if (pg_class_aclcheck(table, user, ACL_SELECT) != ACLCHECK_OK)
        aclcheck_error(ACLCHECK_NO_PRIV, OBJECT_TABLE, get_rel_name(table));
    if (check_enable_rls(table, user, true) == RLS_ENABLED)
        ereport(ERROR,
                (errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
                 errmsg("query would be affected by row-level security policy for table \"%s\"",
                        get_rel_name(table))));
}

// Until the lock was held, the index could be dropped and its OID reused.
void check_table_of(Relation index, Oid table) {
    if (IndexGetRelation(RelationGetRelid(index), true) != table)
        ereport(ERROR, (errcode(ERRCODE_UNDEFINED_TABLE),
                        errmsg("could not open parent table of index \"%s\"",
                               RelationGetRelationName(index))));
}

}  // namespace

OpenIndex open_part(const IndexLeaf& part, LOCKMODE lock) {
    OpenIndex open = {};
    // Table before index, as in all of PostgreSQL: another order could deadlock.
    open.lock = lock;
    open.heap = table_open(part.table, lock);
    GetUserIdAndSecContext(&open.caller, &open.caller_context);
    SetUserIdAndSecContext(open.heap->rd_rel->relowner,
                           open.caller_context | SECURITY_RESTRICTED_OPERATION);
    open.settings_level = NewGUCNestLevel();
    compat_restrict_search_path();
    open.index = index_open(part.index, lock);
    check_table_of(open.index, part.table);
    check_index(open.index);
    return open;
}

OpenIndex open_index(Oid relation, LOCKMODE lock, Purpose purpose) {
    const Oid table = table_of(relation);
    // Before the lock: a caller without the privilege must not block others by waiting for one.
    check_rights(table, purpose);
    return open_part({table, relation}, lock);
}

IndexLeaves find_parts(Oid relation, Purpose purpose) {
    const Oid table = table_of(relation);
    check_rights(table, purpose);
    check_rows_are_here(table);
    IndexLeaves parts = {static_cast<IndexLeaf*>(palloc(sizeof(IndexLeaf))), 1};
    parts.leaves[0] = {table, relation};
    if (get_rel_relkind(relation) != RELKIND_PARTITIONED_INDEX) return parts;
    Relation heap = table_open(table, AccessShareLock);
    Relation index = index_open(relation, AccessShareLock);
    check_table_of(index, table);
    check_index(index, Partitioned::accepted);
    const IndexLeaves leaves = find_leaves(heap, index);
    parts = {leaves.leaves, 0};
    for (int i = 0; i < leaves.count; ++i) {
        const IndexLeaf leaf = leaves.leaves[i];
        if (!OidIsValid(leaf.index)) continue;
        if (purpose == Purpose::maintain) check_rights(leaf.table, purpose);
        parts.leaves[parts.count++] = leaf;
    }
    index_close(index, NoLock);
    table_close(heap, NoLock);
    return parts;
}

void close_index(const OpenIndex& open) {
    AtEOXact_GUC(false, open.settings_level);
    SetUserIdAndSecContext(open.caller, open.caller_context);
    index_close(open.index, open.lock);
    table_close(open.heap, open.lock);
}

}  // namespace pgwarp
