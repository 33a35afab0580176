#include "extension/ivfpq.h"
#include "extension/ivfpq_functions.h"

extern "C" {
#include "access/genam.h"
#include "access/relation.h"
#include "access/table.h"
#include "access/xlog.h"
#include "catalog/index.h"
#include "miscadmin.h"
#include "utils/acl.h"
#include "utils/lsyscache.h"
}

namespace pgwarp {

OpenIndex open_index(Oid relation, LOCKMODE lock) {
    // The table first, as everybody does, so that no deadlock waits for us.
    const Oid table = IndexGetRelation(relation, true);
    if (!OidIsValid(table)) {
        const char* name = get_rel_name(relation);
        if (!name)
            ereport(ERROR, (errcode(ERRCODE_UNDEFINED_TABLE),
                            errmsg("relation with OID %u does not exist", relation)));
        ereport(ERROR,
                (errcode(ERRCODE_WRONG_OBJECT_TYPE), errmsg("\"%s\" is not an ivfpq index", name)));
    }
    Relation heap = table_open(table, lock);
    Relation index = index_open(relation, lock);
    if (index->rd_rel->relkind != RELKIND_INDEX || !index->rd_indam ||
        index->rd_indam->amgettuple != ivfpq_get_tuple)
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
    if (pg_class_aclcheck(table, GetUserId(), ACL_SELECT) != ACLCHECK_OK)
        aclcheck_error(ACLCHECK_NO_PRIV, OBJECT_TABLE, RelationGetRelationName(heap));
    return {heap, index, lock};
}

void close_index(const OpenIndex& open) {
    index_close(open.index, open.lock);
    table_close(open.heap, open.lock);
}

}  // namespace pgwarp
