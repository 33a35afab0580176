// Reading and changing the pages of an ivfpq index. Every change of a page after the build is in
// page.cpp and goes through WAL there.
//
// Lock order: directory page, list pages from head to tail, metapage, then free and pending pages.
#pragma once

#include "extension/index/format.h"

extern "C" {
#include "access/genam.h"
#include "storage/bufmgr.h"
#include "utils/rel.h"
}

namespace pgwarp {

// Reports a page that cannot be what it should be.
[[noreturn]] void report_damage(Relation index, BlockNumber block, const char* what);
inline constexpr const char* chain_has_loop = "the chain of its list has a loop";

// Forgets the cached size of an index. Builds call it: TRUNCATE of a new table and ON COMMIT
// DELETE ROWS build the index again in the same file, which may have been larger before.
void forget_size();

// Pins and locks (BUFFER_LOCK_SHARE or _EXCLUSIVE) a page that must be of this kind.
Buffer read_page(Relation index, BlockNumber block, PageKind kind, int lock);

// Like read_page(), for a page that may have been recycled. Returns false, with nothing pinned or
// locked, where the page no longer belongs to this list.
bool read_list_page(Relation index, BlockNumber block, uint32 list, const EntryLayout& layout,
                    int lock, Buffer* buffer);

// Counts the pages of a walk along a chain. False where they are more than the index has: the chain
// has a loop, or pages left the list and came back to it during the walk.
bool step_is_possible(Relation index, const ListPlace& place, BlockNumber* steps);
// The same, and reports the loop: for a walk during which no page leaves the list.
void count_step(Relation index, BlockNumber block, const ListPlace& place, BlockNumber* steps);

// A copy of the metapage, checked.
MetaPage read_meta(Relation index);

ListPlace read_place(Relation index, const MetaPage& meta, uint32 list);

// The places of several lists, locking each directory page once.
void read_places(Relation index, const MetaPage& meta, const uint32* lists, uint32 count,
                 ListPlace* places);

// Locks a list's place in share mode. Until the caller releases the buffer, the list neither grows
// by a page nor loses an entry.
Buffer lock_place(Relation index, const MetaPage& meta, uint32 list);
ListPlace place_of(Buffer locked, const MetaPage& meta, uint32 list);

inline EntryLayout layout_of(const MetaPage& meta, uint32 list) {
    return EntryLayout::of(list == pending_list ? 0 : meta.m);
}

struct Entry {
    ItemPointerData tid;
    float offset;
    const uint8* code;  // (m); null in the pending list
};

void page_init(Page page, PageKind kind, uint32 list);
void put_entry(Page page, const EntryLayout& layout, uint32 slot, const Entry& entry);

// Appends to the tail of a list.
void append_entry(Relation index, const MetaPage& meta, uint32 list, const Entry& entry);

// Removes the entries of one page that the callback calls dead, and fills their slots from the end
// of the list. Returns the next block of the chain as it is after the change.
struct Removal {
    IndexBulkDeleteCallback is_dead;
    void* state;
    double removed;
    double kept;
};
BlockNumber remove_dead(Relation index, const MetaPage& meta, uint32 list, BlockNumber block,
                        Removal* removal);

// Moves the entry of this TID from a page of the pending list to another list, in one WAL record;
// the last entry of the pending list takes its slot. False, and nothing moved, where the page does
// not hold it (any more).
bool move_pending_entry(Relation index, const MetaPage& meta, BlockNumber block, uint32 list,
                        const Entry& entry);

// Extends the index by a contiguous run of pages; they are empty until written.
BlockNumber extend_by(Relation index, BlockNumber pages);

// Overwrites one page of such a run with an image, in one WAL record.
void write_page(Relation index, BlockNumber block, Page image);

// Replaces the metapage, except for `pending` and the free list.
void write_training(Relation index, const MetaPage& trained);

// Puts pages that belong to no structure, after a crash or an error, into the free list. Returns
// how many.
BlockNumber reclaim_lost_pages(Relation index, const MetaPage& meta);

}  // namespace pgwarp
