#include <cstring>
#include <utility>

#include "extension/index/buffers.h"

extern "C" {
#include "pgstat.h"
#include "storage/buf_internals.h"
}

namespace pgwarp {

namespace {

constexpr int line = 64;  // of memory

// Where a backend last found the blocks of an index, in its relcache entry. A scan reads hundreds
// of pages that stay in the buffer cache; looking a page's buffer up costs more than looking into
// it.
struct RecentBuffers {
    BlockNumber count;
    Buffer buffers[FLEXIBLE_ARRAY_MEMBER];

    // Four bytes a block: enough for an index of 8 GB.
    static constexpr BlockNumber most = 1 << 20;
};

// Null where there is no place for this block.
Buffer* recent_buffer(Relation index, BlockNumber block) {
    if (RelationUsesLocalBuffers(index)) return nullptr;
    auto* recent = static_cast<RecentBuffers*>(index->rd_amcache);
    if (recent && block < recent->count) return &recent->buffers[block];
    const BlockNumber count = Min(RelationGetNumberOfBlocks(index) + 64, RecentBuffers::most);
    if (block >= count) return nullptr;
    const Size bytes = offsetof(RecentBuffers, buffers) + count * sizeof(Buffer);
    auto* larger = static_cast<RecentBuffers*>(MemoryContextAllocZero(index->rd_indexcxt, bytes));
    if (recent) {
        memcpy(larger->buffers, recent->buffers, recent->count * sizeof(Buffer));
        pfree(recent);
    }
    larger->count = count;
    index->rd_amcache = larger;
    return &larger->buffers[block];
}

// One time in sixteen, whatever the order in which pages are read.
bool draw_lookup() {
    static uint32 state = 1;
    state = state * 1664525 + 1013904223;
    return state >> 28 == 0;
}

// Whether the buffer has this page, now. A buffer gets another page in this order: its tag changes,
// under the lock of its header, and it is not valid any more; the page is read; it is valid again.
bool buffer_has(Buffer buffer, const BufferTag& tag) {
    BufferDesc* descriptor = GetBufferDescriptor(buffer - 1);
    const uint32 state = pg_atomic_read_u32(&descriptor->state);
    return (state & (BM_VALID | BM_LOCKED)) == BM_VALID && compat_same_tag(&descriptor->tag, &tag);
}

BufferAccessStrategy ring_now = nullptr;

}  // namespace

BufferAccessStrategy set_ring(BufferAccessStrategy ring) {
    return std::exchange(ring_now, ring);
}

Buffer look_up_buffer(Relation index, BlockNumber block) {
    return ReadBufferExtended(index, MAIN_FORKNUM, block, RBM_NORMAL, ring_now);
}

Buffer find_buffer(Relation index, BlockNumber block) {
    const Buffer* last = recent_buffer(index, block);
    // What is found without looking it up does not count as used, and would leave the buffer cache
    // before pages that are used less.
    if (last && BufferIsValid(*last) && !draw_lookup()) {
        const Buffer buffer = *last;
        if (ReadRecentBuffer(compat_locator(index), MAIN_FORKNUM, block, buffer)) {
            pgstat_count_buffer_read(index);
            pgstat_count_buffer_hit(index);
            return buffer;
        }
    }
    const Buffer buffer = look_up_buffer(index, block);
    // Reading may have let the relcache entry be rebuilt, and the cache with it.
    Buffer* place = recent_buffer(index, block);
    if (place) *place = buffer;
    return buffer;
}

bool is_seen_as_tail(Relation index, BlockNumber block, uint32 list, uint32 items) {
    if (!BlockNumberIsValid(block)) return false;
    Buffer* recent = recent_buffer(index, block);
    if (!recent || !BufferIsValid(*recent)) return false;
    if (draw_lookup()) {
        *recent = InvalidBuffer;  // whoever reads it now looks it up
        return false;
    }
    const Buffer buffer = *recent;
    BufferTag tag;
    compat_init_tag(&tag, index, block);
    if (!buffer_has(buffer, tag)) return false;
    pg_read_barrier();
    // Where it is on a page of an index: what the page itself says may be another page's word.
    PageTail tail;
    memcpy(&tail, static_cast<char*>(BufferGetPage(buffer)) + BLCKSZ - MAXALIGN(sizeof(PageTail)),
           sizeof(tail));
    pg_read_barrier();
    // What was read was on this page if the buffer still has it.
    return buffer_has(buffer, tag) && tail.kind == PageKind::list && tail.list == list &&
           !BlockNumberIsValid(tail.next) && tail.count == items;
}

Page expect_list_page(Relation index, BlockNumber block) {
    if (!BlockNumberIsValid(block)) return nullptr;
    const auto* recent = static_cast<const RecentBuffers*>(index->rd_amcache);
    if (!recent || block >= recent->count || !BufferIsValid(recent->buffers[block])) return nullptr;
    Page page = BufferGetPage(recent->buffers[block]);
    __builtin_prefetch(page);
    __builtin_prefetch(static_cast<char*>(page) + BLCKSZ - line);
    return page;
}

void expect_entries(Page page, const EntryLayout& layout) {
    // All but the TIDs, of which few are wanted. Into the second cache: the first has the page
    // under way.
    const char* entries = static_cast<const char*>(page);
    const Size end = page_begin + layout.tids_at;
    for (Size at = 0; at < end; at += line) __builtin_prefetch(entries + at, 0, 2);
}

}  // namespace pgwarp
