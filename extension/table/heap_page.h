// Reading pages of a heap without a scan.
#pragma once

#include "extension/compat.h"

extern "C" {
#include "access/htup_details.h"
#include "miscadmin.h"
#include "storage/bufmgr.h"
#include "utils/rel.h"
}

namespace pgwarp {

// A ring of buffers for large tables, as sequential scans use it: the table must not evict
// everything else from shared buffers. Null: no ring.
inline BufferAccessStrategy scan_strategy(Relation heap) {
    return RelationGetNumberOfBlocks(heap) > static_cast<BlockNumber>(NBuffers) / 4
               ? GetAccessStrategy(BAS_BULKREAD)
               : nullptr;
}

// The tuple at this offset, not copied. Its line pointer is a normal one.
inline HeapTupleData tuple_on_page(Relation heap, Page page, BlockNumber block,
                                   OffsetNumber offset) {
    const ItemId item = PageGetItemId(page, offset);
    HeapTupleData tuple;
    tuple.t_data = reinterpret_cast<HeapTupleHeader>(PageGetItem(page, item));
    tuple.t_len = ItemIdGetLength(item);
    tuple.t_tableOid = RelationGetRelid(heap);
    ItemPointerSet(&tuple.t_self, block, offset);
    return tuple;
}

}  // namespace pgwarp
