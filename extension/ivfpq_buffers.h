// Where a backend found the pages of an index last, and what that lets it do without looking them
// up.
#pragma once

#include "extension/ivfpq_format.h"

extern "C" {
#include "storage/bufmgr.h"
#include "utils/rel.h"
}

namespace pgwarp {

// Pins the buffer of a block.
Buffer find_buffer(Relation index, BlockNumber block);

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
