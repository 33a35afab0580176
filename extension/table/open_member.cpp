#include "extension/table/open_member.h"

extern "C" {
#include "access/table.h"
#include "executor/tuptable.h"
}

namespace pgwarp {

void open_member(OpenMember* member, const ReadColumns& columns, Oid table, LOCKMODE lock) {
    Relation relation = table_open(table, lock);
    // Columns of a child match its parent's by name, not by number.
    member->vector_attribute = find_column(table, columns.vector_name);
    member->key_attribute = columns.key_name ? find_column(table, columns.key_name) : 0;
    const auto type_of = [relation](AttrNumber attribute) {
        return TupleDescAttr(RelationGetDescr(relation), attribute - 1)->atttypid;
    };
    check_types(columns, type_of(member->vector_attribute),
                columns.key_name ? type_of(member->key_attribute) : InvalidOid);
    member->slot = table_slot_create(relation, nullptr);
    member->toast = open_toast_reader(relation);
    member->relation = relation;
}

void close_member(OpenMember* member) {
    if (!member->relation) return;
    ExecDropSingleTupleTableSlot(member->slot);
    table_endscan(member->scan);
    close_toast_reader(member->toast);
    table_close(member->relation, NoLock);
    member->relation = nullptr;
}

}  // namespace pgwarp
