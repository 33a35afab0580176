#include "extension/index/options.h"
#include "extension/index/argument.h"

extern "C" {
#include "access/genam.h"
#include "access/relation.h"
#include "access/table.h"
#include "access/xlog.h"
#include "catalog/index.h"
#include "catalog/pg_class.h"
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
             is_table ? errhint("It is a table: name its index.") : 0));
}

void check_index(Relation index) {
    if (index->rd_rel->relkind == RELKIND_PARTITIONED_INDEX)
        ereport(ERROR,
                (errcode(ERRCODE_WRONG_OBJECT_TYPE),
                 errmsg("\"%s\" is a partitioned index", RelationGetRelationName(index)),
                 errhint("Name the index of a partition, as pg_partition_tree() lists them.")));
    if (index->rd_rel->relkind != RELKIND_INDEX || !is_ivfpq(index))
        ereport(ERROR, (errcode(ERRCODE_WRONG_OBJECT_TYPE),
                        errmsg("\"%s\" is not an ivfpq index", RelationGetRelationName(index))));
    if (!index->rd_index->indisvalid)
        ereport(ERROR, (errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
                        errmsg("index \"%s\" is not valid", RelationGetRelationName(index)),
                        errhint("Please REINDEX it.")));
    if (RELATION_IS_OTHER_TEMP(index))
        ereport(ERROR, (errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
                        errmsg("cannot access temporary indexes of other sessions")));
    if (RecoveryInProgress() && !RelationIsPermanent(index))
        ereport(ERROR, (errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
                        errmsg("cannot access temporary or unlogged relations during recovery")));
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

}  // namespace

OpenIndex open_index(Oid relation, LOCKMODE lock, Purpose purpose) {
    OpenIndex open = {};
    const Oid table = table_of(relation);
    // Before the lock: a caller without the privilege must not block others by waiting for one.
    check_rights(table, purpose);
    // Table before index, as in all of PostgreSQL: another order could deadlock.
    open.lock = lock;
    open.heap = table_open(table, lock);
    GetUserIdAndSecContext(&open.caller, &open.caller_context);
    SetUserIdAndSecContext(open.heap->rd_rel->relowner,
                           open.caller_context | SECURITY_RESTRICTED_OPERATION);
    open.settings_level = NewGUCNestLevel();
    compat_restrict_search_path();
    open.index = index_open(relation, lock);
    // Until the lock was held, the index could be dropped and its OID reused.
    if (IndexGetRelation(relation, true) != table)
        ereport(ERROR, (errcode(ERRCODE_UNDEFINED_TABLE),
                        errmsg("could not open parent table of index \"%s\"",
                               RelationGetRelationName(open.index))));
    check_index(open.index);
    return open;
}

void close_index(const OpenIndex& open) {
    AtEOXact_GUC(false, open.settings_level);
    SetUserIdAndSecContext(open.caller, open.caller_context);
    index_close(open.index, open.lock);
    table_close(open.heap, open.lock);
}

}  // namespace pgwarp
