#include <cstring>
#include <utility>

#include "extension/index/buffers.h"
#include "extension/util/prefetch.h"

extern "C" {
#include "pgstat.h"
#include "storage/buf_internals.h"
}

namespace pgwarp {

namespace {

// The buffers in which a backend last found the blocks of an index; hangs on the relcache entry. A
// scan reads hundreds of pages that stay in the buffer cache, and the lookup of a buffer costs more
// than reading the page.
struct RecentBuffers {
    BlockNumber count;
    BlockNumber blocks;  // the index has at least as many
    Buffer buffers[FLEXIBLE_ARRAY_MEMBER];

    // Blocks, at four bytes each: covers 8 GB of an index.
    static constexpr BlockNumber most = 1 << 20;
};

// The slot of a block, null for local buffers and blocks beyond RecentBuffers::most. Grows the
// array where needed.
Buffer* recent_buffer(Relation index, BlockNumber block) {
    if (RelationUsesLocalBuffers(index)) return nullptr;
    auto* recent = static_cast<RecentBuffers*>(index->rd_amcache);
    if (recent && block < recent->count) return &recent->buffers[block];
    const BlockNumber blocks = RelationGetNumberOfBlocks(index);
    const BlockNumber count = Min(blocks + 64, RecentBuffers::most);
    if (block >= count) return nullptr;
    const Size bytes = offsetof(RecentBuffers, buffers) + count * sizeof(Buffer);
    auto* larger = static_cast<RecentBuffers*>(MemoryContextAllocZero(index->rd_indexcxt, bytes));
    if (recent) {
        memcpy(larger->buffers, recent->buffers, recent->count * sizeof(Buffer));
        pfree(recent);
    }
    larger->count = count;
    larger->blocks = blocks;
    index->rd_amcache = larger;
    return &larger->buffers[block];
}

// True one time in sixteen, pseudorandomly: no order of reading pages can fall into step with it.
bool draw_lookup() {
    static uint32 state = 1;
    state = state * 1664525 + 1013904223;
    return state >> 28 == 0;
}

// Whether the buffer holds this page now. A buffer gets another page in this order: its tag changes
// and BM_VALID is cleared, both under the header lock (BM_LOCKED); the page is read; BM_VALID is
// set.
bool buffer_has(Buffer buffer, const BufferTag& tag) {
    BufferDesc* descriptor = GetBufferDescriptor(buffer - 1);
    const auto state = compat_buffer_state(descriptor);
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
    // Before 19, ReadRecentBuffer() does not bump the usage count: without a normal lookup now and
    // then, the page would be evicted before pages that are used less. From 19 on it does, and a
    // ring cannot reuse a buffer that its own reader has pinned twice that way.
    if (last && BufferIsValid(*last) && !ring_now && !draw_lookup()) {
        const Buffer buffer = *last;
        if (ReadRecentBuffer(compat_locator(index), MAIN_FORKNUM, block, buffer)) {
            pgstat_count_buffer_read(index);
            pgstat_count_buffer_hit(index);
            return buffer;
        }
    }
    const Buffer buffer = look_up_buffer(index, block);
    // The read may have rebuilt the relcache entry, and rd_amcache with it.
    Buffer* place = recent_buffer(index, block);
    if (place) *place = buffer;
    return buffer;
}

bool waits_for_itself(Buffer buffer, int lock) {
    if (BufferIsLocal(buffer)) return false;
    return compat_buffer_is_locked(buffer, BUFFER_LOCK_EXCLUSIVE) ||
           (lock == BUFFER_LOCK_EXCLUSIVE && compat_buffer_is_locked(buffer, BUFFER_LOCK_SHARE));
}

bool is_seen_as_tail(Relation index, BlockNumber block, uint32 list, uint32 items) {
    if (!BlockNumberIsValid(block)) return false;
    Buffer* recent = recent_buffer(index, block);
    if (!recent || !BufferIsValid(*recent)) return false;
    if (draw_lookup()) {
        *recent = InvalidBuffer;  // makes the next reader here look it up
        return false;
    }
    const Buffer buffer = *recent;
    BufferTag tag;
    compat_init_tag(&tag, index, block);
    if (!buffer_has(buffer, tag)) return false;
    pg_read_barrier();
    // By its fixed offset on index pages: pd_special may be that of another page by now.
    PageTail tail;
    memcpy(&tail, static_cast<char*>(BufferGetPage(buffer)) + BLCKSZ - MAXALIGN(sizeof(PageTail)),
           sizeof(tail));
    pg_read_barrier();
    // The copy is of this page if the buffer still holds the page.
    return buffer_has(buffer, tag) && tail.kind == PageKind::list && tail.list == list &&
           !BlockNumberIsValid(tail.next) && tail.count == items;
}

Page prefetch_list_page(Relation index, BlockNumber block) {
    if (!BlockNumberIsValid(block)) return nullptr;
    const auto* recent = static_cast<const RecentBuffers*>(index->rd_amcache);
    if (!recent || block >= recent->count || !BufferIsValid(recent->buffers[block])) return nullptr;
    Page page = BufferGetPage(recent->buffers[block]);
    __builtin_prefetch(page);
    __builtin_prefetch(static_cast<char*>(page) + BLCKSZ - cache_line);
    return page;
}

void read_page_ahead(Relation index, BlockNumber block) {
    if (!BlockNumberIsValid(block)) return;
    Buffer* recent = recent_buffer(index, block);
    if (!recent) return;
    BufferTag tag;
    compat_init_tag(&tag, index, block);
    if (BufferIsValid(*recent) && buffer_has(*recent, tag)) return;
    if (block >= static_cast<const RecentBuffers*>(index->rd_amcache)->blocks) return;
    const PrefetchBufferResult result = PrefetchBuffer(index, MAIN_FORKNUM, block);
    if (BufferIsValid(result.recent_buffer)) *recent = result.recent_buffer;
}

void prefetch_entries(Page page, const EntryLayout& layout) {
    // All but the TIDs, of which few are read. Into the L2 cache: L1 has the page that is being
    // scanned.
    const char* entries = static_cast<const char*>(page);
    const Size end = page_begin + layout.tids_at;
    for (Size at = 0; at < end; at += cache_line) __builtin_prefetch(entries + at, 0, 2);
}

}  // namespace pgwarp
