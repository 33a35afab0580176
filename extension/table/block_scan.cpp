#include "extension/table/block_scan.h"

namespace pgwarp {

BlockScan::BlockScan(const ReadColumns& columns, Snapshot snapshot)
    : columns_(columns), snapshot_(snapshot) {
    member_.row_context =
        AllocSetContextCreate(context_, "table reader row", ALLOCSET_DEFAULT_SIZES);
}

void BlockScan::begin(Oid member, BlockNumber first, BlockNumber end) {
    const MemoryContext before = MemoryContextSwitchTo(context_);
    ItemPointerData from;
    ItemPointerData to;
    ItemPointerSet(&from, first, FirstOffsetNumber);
    ItemPointerSet(&to, end - 1, MaxOffsetNumber);
    if (member_.relation && RelationGetRelid(member_.relation) != member) close_member(&member_);
    if (!member_.relation) {
        open_member(&member_, columns_, member, AccessShareLock);
        member_.scan = compat_beginscan_tidrange(member_.relation, snapshot_, &from, &to);
        // As sequential scans do: a large table must not evict everything else from shared buffers.
        member_.scan->rs_flags |= SO_ALLOW_STRAT;
    }
    table_rescan_tidrange(member_.scan, &from, &to);
    MemoryContextSwitchTo(before);
}

bool BlockScan::next(SourceRow* row) {
    if (!table_scan_getnextslot_tidrange(member_.scan, ForwardScanDirection, member_.slot))
        return false;
    take_row(member_, row);
    return true;
}

void BlockScan::rewind() {
    close_member(&member_);
}

}  // namespace pgwarp
