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

// Has memory bring a page that will be read soon, where this backend knows its buffer. No block: no
// page.
void expect_list_page(Relation index, BlockNumber block, const EntryLayout& layout);

}  // namespace pgwarp
