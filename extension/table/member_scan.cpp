#include <new>

#include "extension/table/member_scan.h"

extern "C" {
#include "access/table.h"
#include "access/xlog.h"
#include "catalog/pg_class.h"
#include "catalog/pg_inherits.h"
#include "miscadmin.h"
#include "storage/predicate.h"
#include "utils/lsyscache.h"
}

namespace pgwarp {

namespace {

bool can_scan(char kind) {
    return kind == RELKIND_RELATION || kind == RELKIND_MATVIEW || kind == RELKIND_PARTITIONED_TABLE;
}

bool is_computed(Relation relation, const char* name) {
    const AttrNumber attribute = get_attnum(RelationGetRelid(relation), name);
    return attribute > 0 && compat_is_virtual(TupleDescAttr(relation->rd_att, attribute - 1));
}

void check_accessible(Relation relation) {
    if (relation->rd_rel->relkind == RELKIND_MATVIEW && !RelationIsPopulated(relation))
        ereport(ERROR, (errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
                        errmsg("materialized view \"%s\" has not been populated",
                               RelationGetRelationName(relation)),
                        errhint("Use the REFRESH MATERIALIZED VIEW command.")));
    if (RELATION_IS_OTHER_TEMP(relation))
        ereport(ERROR, (errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
                        errmsg("cannot access temporary tables of other sessions")));
    if (RecoveryInProgress() && !RelationIsPermanent(relation))
        ereport(ERROR, (errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
                        errmsg("cannot access temporary or unlogged relations during recovery")));
}

}  // namespace

MemberScan* MemberScan::open(const ReadColumns& columns, bool only, Snapshot snapshot) {
    if (!can_scan(get_rel_relkind(columns.table))) return nullptr;
    MemberScan* scan = new (palloc(sizeof(MemberScan))) MemberScan(columns, snapshot);
    if (!scan->find_members(only)) return nullptr;
    scan->member_.row_context =
        AllocSetContextCreate(scan->context_, "table reader row", ALLOCSET_DEFAULT_SIZES);
    return scan;
}

// False where a member can only be read by a query.
bool MemberScan::find_members(bool only) {
    List* relations = only ? list_make1_oid(columns_.table)
                           : find_all_inheritors(columns_.table, AccessShareLock, nullptr);
    members_ = static_cast<Oid*>(palloc(sizeof(Oid) * list_length(relations)));
    bool scannable = true;
    ListCell* cell;
    foreach (cell, relations) {
        Relation relation = table_open(lfirst_oid(cell), NoLock);
        const char kind = relation->rd_rel->relkind;
        scannable &= can_scan(kind) && !is_computed(relation, columns_.vector_name) &&
                     !(columns_.key_name && is_computed(relation, columns_.key_name));
        // Skips children that are temporary tables of other sessions, as queries do.
        const bool of_others =
            RELATION_IS_OTHER_TEMP(relation) && RelationGetRelid(relation) != columns_.table;
        if (scannable && !of_others) check_accessible(relation);
        if (kind != RELKIND_PARTITIONED_TABLE && !of_others)
            members_[count_++] = RelationGetRelid(relation);
        table_close(relation, NoLock);
    }
    list_free(relations);
    return scannable;
}

void MemberScan::begin_next() {
    const MemoryContext before = MemoryContextSwitchTo(context_);
    open_member(&member_, columns_, members_[next_++], NoLock);
    // No synchronized scan: rows come in the order of blocks, which the header promises.
    member_.scan = table_beginscan_strat(member_.relation, snapshot_, 0, nullptr, true, false);
    MemoryContextSwitchTo(before);
}

bool MemberScan::next(SourceRow* row) {
    while (true) {
        if (!member_.relation) {
            if (next_ == count_) return false;
            begin_next();
        }
        if (table_scan_getnextslot(member_.scan, ForwardScanDirection, member_.slot)) {
            take_row(member_, row);
            return true;
        }
        close_member(&member_);
    }
}

void MemberScan::rewind() {
    close_member(&member_);
    next_ = 0;
}

double MemberScan::estimated_rows() const {
    double rows = 0;
    for (int i = 0; i < count_; ++i) {
        Relation relation = table_open(members_[i], NoLock);
        BlockNumber pages;
        double tuples;
        double visible;
        table_relation_estimate_size(relation, nullptr, &pages, &tuples, &visible);
        rows += tuples;
        table_close(relation, NoLock);
    }
    return rows;
}

int MemberScan::list(TableMember** members) const {
    *members = static_cast<TableMember*>(palloc(count_ * sizeof(TableMember)));
    bool scannable = true;
    for (int i = 0; i < count_; ++i) {
        Relation relation = table_open(members_[i], NoLock);
        // Temporary tables lie in local buffers, which workers cannot read.
        scannable &= !RelationUsesLocalBuffers(relation) &&
                     relation->rd_tableam->scan_set_tidrange != nullptr;
        (*members)[i] = {members_[i], RelationGetNumberOfBlocks(relation)};
        // TID range scans take no predicate locks: lock the whole relation.
        PredicateLockRelation(relation, snapshot_);
        table_close(relation, NoLock);
    }
    return scannable ? count_ : 0;
}

}  // namespace pgwarp
