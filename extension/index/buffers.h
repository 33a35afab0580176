// Remembers in which buffer a backend last found each page of an index, and saves lookups in the
// buffer mapping table by it.
#pragma once

#include "extension/index/format.h"

extern "C" {
#include "storage/bufmgr.h"
#include "utils/rel.h"
}

namespace pgwarp {

// Pins the buffer of a block: the remembered one if it still holds the block, else by a lookup.
Buffer find_buffer(Relation index, BlockNumber block);

// While `body` runs, this backend reads index pages that are not in the buffer cache through a ring
// of buffers, as VACUUM does with the table: pages that are read once do not evict others. Pages
// that are read again soon should not go through the ring, which is small. Null: no ring.
BufferAccessStrategy set_ring(BufferAccessStrategy ring);  // returns the one before
template <typename Body>
void read_through(BufferAccessStrategy ring, Body body) {
    const BufferAccessStrategy before = set_ring(ring);
    PG_TRY();
    { body(); }
    PG_FINALLY();
    { set_ring(before); }
    PG_END_TRY();
}

// Pins the buffer of a block by a lookup, ignoring the remembered buffer.
Buffer look_up_buffer(Relation index, BlockNumber block);

// Whether this backend would wait for itself if it locked the buffer so: it has it locked already.
// A damaged page may point to any other, also to one that is being changed.
bool waits_for_itself(Buffer buffer, int lock);

// Whether a page is the tail of this list and has `items` entries, at some moment during the call.
// Takes neither pin nor lock, on whose cache line many sessions would contend. Returns false also
// where it cannot tell.
bool is_seen_as_tail(Relation index, BlockNumber block, uint32 list, uint32 items);

// Prefetches header and PageTail of a page that will be read soon. Returns the page, or null if
// this backend remembers no buffer for it, or the block is invalid. Pins nothing: the buffer may
// hold another page by now.
Page prefetch_list_page(Relation index, BlockNumber block);

// Asks the kernel to read a page that will be read soon, if it is not in shared buffers. Blocks
// past the end are ignored: a damaged page may name any.
void read_page_ahead(Relation index, BlockNumber block);

// Prefetches the codes and offsets of a page that prefetch_list_page() returned.
void prefetch_entries(Page page, const EntryLayout& layout);

}  // namespace pgwarp
