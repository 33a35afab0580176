// Reading the pages of an ivfpq index, with checks. Every change of a page after the build goes
// through WAL, in list_changes.cpp and page_changes.cpp.
//
// Lock order: directory page, list pages from head to tail, metapage, then free and pending pages.
#pragma once

#include "extension/index/format.h"

extern "C" {
#include "storage/bufmgr.h"
#include "utils/rel.h"
}

namespace pgwarp {

// Reports a page that cannot be what it should be.
[[noreturn]] void report_damage(Relation index, BlockNumber block, const char* what);
inline constexpr const char* chain_has_loop = "the chain of its list has a loop";

// Whether a page can be one of an ivfpq index.
bool page_is_sound(Page page);
// Reports a block that the index does not have.
void check_block(Relation index, BlockNumber block);

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

inline RefinementLayout refinement_layout(const MetaPage& meta) {
    return RefinementLayout::of(meta.refinement, meta.code_dims);
}

// About how many times as many entries the lists have as when the curve was measured, by their
// pages; at least 1.
double list_growth(Relation index, const MetaPage& meta);

inline EntryLayout layout_of(const MetaPage& meta, uint32 list) {
    const bool has_codes = list != pending_list && list < meta.lists;
    return has_codes ? EntryLayout::of(meta.m, meta.attributes, refinement_layout(meta))
                     : EntryLayout::without_codes();
}

struct Entry {
    ItemPointerData tid;
    float offset;
    const uint8* code;        // (m); null in lists without codes
    const uint8* attributes;  // (attributes.entry_bytes()): numbers, then null bytes
    // (refinement.bytes()): a head, then codes; null in lists without codes
    const uint8* refinement = nullptr;
};

void page_init(Page page, PageKind kind, uint32 list);
void put_entry(Page page, const EntryLayout& layout, uint32 slot, const Entry& entry);
// A copy of an entry without its refinement; its code and attributes are in `room`,
// (copied_bytes()).
Size copied_bytes(const EntryLayout& layout);
Entry entry_at(Page page, const EntryLayout& layout, uint32 slot, uint8* room);

// Pins and locks the refinement page of a slot of a list page, which the caller has locked.
Buffer read_refinement_page(Relation index, Buffer list_page, const EntryLayout& layout,
                            uint32 slot, int lock);
// Pins and share-locks a refinement page that may have been recycled. Returns false, with nothing
// pinned or locked, where it is no such page any more.
bool find_refinement_page(Relation index, BlockNumber block, Buffer* buffer);
// On that page: stores the refinement of an entry, or copies it to `room`, (refinement.bytes()).
void put_refinement(Page page, const EntryLayout& layout, uint32 slot, const Entry& entry);
const uint8* copy_refinement(Page page, const EntryLayout& layout, uint32 slot, uint8* room);

}  // namespace pgwarp
