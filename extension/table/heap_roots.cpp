#include "extension/table/heap_roots.h"

extern "C" {
#include "access/heapam.h"
#include "access/tableam.h"
#include "storage/bufmgr.h"
}

namespace pgwarp {

bool has_heap_pages(Relation table) {
    return table->rd_tableam == GetHeapamTableAmRoutine();
}

uint64 root_of(RootFinder* finder, uint64 tid) {
    const auto block = static_cast<BlockNumber>(tid >> 16);
    const auto offset = static_cast<OffsetNumber>(tid & 0xffff);
    if (block != finder->block) {
        end_root_finder(finder);
        finder->buffer = ReadBuffer(finder->table, block);
        finder->block = block;
        finder->mapped = false;
    }
    LockBuffer(finder->buffer, BUFFER_LOCK_SHARE);
    Page page = BufferGetPage(finder->buffer);
    OffsetNumber root = offset;
    if (offset <= PageGetMaxOffsetNumber(page)) {
        const ItemId item = PageGetItemId(page, offset);
        if (ItemIdIsNormal(item) &&
            HeapTupleHeaderIsHeapOnly(reinterpret_cast<HeapTupleHeader>(PageGetItem(page, item)))) {
            if (!finder->mapped) heap_get_root_tuples(page, finder->roots);
            finder->mapped = true;
            root = finder->roots[offset - 1];
        }
    }
    LockBuffer(finder->buffer, BUFFER_LOCK_UNLOCK);
    return static_cast<uint64>(block) << 16 | root;
}

void end_root_finder(RootFinder* finder) {
    if (BufferIsValid(finder->buffer)) ReleaseBuffer(finder->buffer);
    finder->buffer = InvalidBuffer;
    finder->block = InvalidBlockNumber;
}

}  // namespace pgwarp
