// Where a backend found the pages of an index last, and what that lets it do without looking them
// up.
#pragma once

#include "extension/index/format.h"

extern "C" {
#include "storage/bufmgr.h"
#include "utils/rel.h"
}

namespace pgwarp {

// Pins the buffer of a block.
Buffer find_buffer(Relation index, BlockNumber block);

// While `body` runs, this backend reads pages of indexes that are not in the buffer cache through a
// ring of buffers, as VACUUM does with the table: pages that are wanted once do not drive others
// out. A page that will be wanted again soon is better read without, for the ring is small. Null:
// no ring.
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

// Pins the buffer of a block, without the memory of where it was last.
Buffer look_up_buffer(Relation index, BlockNumber block);

// Whether a page is the last of this list and has so many entries, at some moment during the call.
// Takes neither pin nor lock, which many sessions would take from each other; false also where it
// cannot tell.
bool is_seen_as_tail(Relation index, BlockNumber block, uint32 list, uint32 items);

// Where a page lies that will be read soon, if this backend knows; else, and for no block, null.
// Has memory bring what is looked at first. Nothing is pinned: it may be another page by now.
Page expect_list_page(Relation index, BlockNumber block);

// Has memory bring the codes and offsets of such a page.
void expect_entries(Page page, const EntryLayout& layout);

}  // namespace pgwarp
