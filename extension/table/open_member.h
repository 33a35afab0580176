// One of the tables whose rows belong to a table that is read: itself, a child or a partition.
#pragma once

#include "extension/table/columns.h"
#include "extension/table/row_source.h"
#include "extension/table/toast_reader.h"

extern "C" {
#include "access/tableam.h"
#include "utils/rel.h"
}

namespace pgwarp {

// A member while it is scanned. The caller begins the scan, and moves it on.
struct OpenMember {
    Relation relation;  // null: none is open
    TableScanDesc scan;
    TupleTableSlot* slot;
    ToastReader* toast;
    AttrNumber vector_attribute;
    AttrNumber key_attribute;  // 0: none
    MemoryContext row_context;
};

// Opens a member in the current memory context. Checks the types of its columns.
void open_member(OpenMember* member, const ReadColumns& columns, Oid table, LOCKMODE lock);
// Ends its scan, too. Does nothing where no member is open. Locks stay.
void close_member(OpenMember* member);

// The row in the slot.
inline void take_row(const OpenMember& member, SourceRow* row) {
    bool is_null;
    const Datum vector = slot_getattr(member.slot, member.vector_attribute, &is_null);
    if (member.key_attribute != 0)
        row->key = slot_getattr(member.slot, member.key_attribute, &row->key_is_null);
    row->tid = member.slot->tts_tid;
    row->vector = is_null ? nullptr : plain_value(vector, member.row_context, [&](Datum datum) {
        return read_value(member.toast, datum);
    });
}

}  // namespace pgwarp
