#include "extension/table/heap_hints.h"
#include "extension/util/prefetch.h"

extern "C" {
#include "access/heapam.h"
#include "storage/buf_internals.h"
#include "storage/bufmgr.h"
}

namespace pgwarp {

namespace {

// Hints of a table's successive pages lie next to each other. Pages of two tables may collide, and
// a hint does not record its table: a pin by hint checks which page the buffer holds.
constexpr uint32 room = 65536;
struct Hint {
    BlockNumber block;
    Buffer buffer;
};
Hint hints[room];

// Before 19, a pin by hint does not bump the buffer's usage count. One visit in this many takes the
// normal path, which does.
constexpr uint32 long_way = 16;
uint32 pins = 0;

Hint* place_of(Relation heap, BlockNumber block) {
    return &hints[(block + compat_file_number(heap) * 0x9e37) % room];
}

Buffer hinted(Relation heap, const ItemPointerData& tid) {
    // A damaged index may hold any TID.
    if (ItemPointerGetOffsetNumberNoCheck(&tid) > MaxHeapTuplesPerPage) return InvalidBuffer;
    const BlockNumber block = ItemPointerGetBlockNumberNoCheck(&tid);
    const Hint* hint = place_of(heap, block);
    return hint->block == block ? hint->buffer : InvalidBuffer;
}

}  // namespace

bool can_hint(Relation heap) {
    return heap->rd_tableam == GetHeapamTableAmRoutine() && !RelationUsesLocalBuffers(heap);
}

void pin_hinted(Relation heap, IndexFetchTableData* fetch, const ItemPointerData& tid) {
    if (++pins % long_way != 0) pin_known(heap, fetch, tid);
}

bool pin_known(Relation heap, IndexFetchTableData* fetch, const ItemPointerData& tid) {
    const BlockNumber block = ItemPointerGetBlockNumberNoCheck(&tid);
    auto* heap_fetch = reinterpret_cast<IndexFetchHeapData*>(fetch);
    if (BufferIsValid(heap_fetch->xs_cbuf) && BufferGetBlockNumber(heap_fetch->xs_cbuf) == block)
        return true;
    const Buffer buffer = hinted(heap, tid);
    if (!BufferIsValid(buffer) ||
        !ReadRecentBuffer(compat_locator(heap), MAIN_FORKNUM, block, buffer))
        return false;
    // The fetch finds its page already pinned.
    if (BufferIsValid(heap_fetch->xs_cbuf)) ReleaseBuffer(heap_fetch->xs_cbuf);
    heap_fetch->xs_cbuf = buffer;
    compat_note_pinned(heap_fetch, heap, block);
    return true;
}

void note_hint(Relation heap, const TupleTableSlot* slot, const ItemPointerData& tid) {
    if (!TTS_IS_BUFFERTUPLE(slot)) return;
    const BlockNumber block = ItemPointerGetBlockNumberNoCheck(&tid);
    *place_of(heap, block) = {block,
                              reinterpret_cast<const BufferHeapTupleTableSlot*>(slot)->buffer};
}

void read_ahead(Relation heap, const ItemPointerData& tid) {
    const BlockNumber block = ItemPointerGetBlockNumberNoCheck(&tid);
    Hint* hint = place_of(heap, block);
    if (hint->block == block && BufferIsValid(hint->buffer)) {
        BufferTag tag;
        compat_init_tag(&tag, heap, block);
        const BufferDesc* descriptor = GetBufferDescriptor(hint->buffer - 1);
        // Nothing is pinned: the page may leave at any time, and is read then.
        if (compat_same_tag(&descriptor->tag, &tag)) return;
    }
    const PrefetchBufferResult result = PrefetchBuffer(heap, MAIN_FORKNUM, block);
    if (BufferIsValid(result.recent_buffer)) *hint = {block, result.recent_buffer};
}

void prefetch_hint(Relation heap, const ItemPointerData& tid) {
    __builtin_prefetch(place_of(heap, ItemPointerGetBlockNumberNoCheck(&tid)));
}

void prefetch_page(Relation heap, const ItemPointerData& tid) {
    const Buffer buffer = hinted(heap, tid);
    if (!BufferIsValid(buffer)) return;
    Page page = BufferGetPage(buffer);
    __builtin_prefetch(GetBufferDescriptor(buffer - 1));
    __builtin_prefetch(page);
    __builtin_prefetch(PageGetItemId(page, ItemPointerGetOffsetNumberNoCheck(&tid)));
}

void prefetch_tuple(Relation heap, const ItemPointerData& tid) {
    const Buffer buffer = hinted(heap, tid);
    if (!BufferIsValid(buffer)) return;
    // Nothing is pinned: the buffer may hold any page, so what is read here may only choose an
    // address to prefetch.
    Page page = BufferGetPage(buffer);
    const uint32 offset = PageGetItemId(page, ItemPointerGetOffsetNumberNoCheck(&tid))->lp_off;
    // A row of few columns, or the header and TOAST pointers of another.
    constexpr Size bytes = 8 * cache_line;
    prefetch_lines(static_cast<char*>(page) + offset % BLCKSZ, bytes);
}

}  // namespace pgwarp
