#include <cstring>

#include "extension/graph/edge_index.h"

extern "C" {
#include "access/nbtree.h"
#include "access/xloginsert.h"
#include "miscadmin.h"
#include "storage/bufmgr.h"
#include "utils/memutils.h"
#include "utils/rel.h"
}

namespace pgwarp {

namespace {

// An entry of a leaf, and with an ending number of columns the pivot of an upper level.
struct IndexEntry {
    IndexTupleData header;
    int64 src;
    int32 rank;
    int32 padding;
};
static_assert(sizeof(IndexEntry) == 24);
constexpr Size pivot_of_src = offsetof(IndexEntry, rank);

// Room for one more entry on a page is asked for in these terms: no pivot is larger.
constexpr Size entry_room = sizeof(IndexEntry) + sizeof(ItemIdData);

// A page, and the pivot that separates it from the page on its left.
struct Child {
    IndexEntry low;  // of the first page of a level: without columns
    BlockNumber block;
};

struct Level {
    Child* pages;
    Size count;
    Size room;
};

void remember(Level* level, const Child& child) {
    if (level->count == level->room) {
        level->room *= 2;
        level->pages =
            static_cast<Child*>(repalloc_huge(level->pages, level->room * sizeof(Child)));
    }
    level->pages[level->count++] = child;
}

Level new_level() {
    constexpr Size first_room = 256;
    return {static_cast<Child*>(palloc(first_room * sizeof(Child))), 0, first_room};
}

// The shortest key that is greater than `left`, and not greater than `right`. Keys are unique, so
// that no pivot needs the place of a row.
IndexEntry pivot_between(const IndexEntry& left, const IndexEntry& right) {
    IndexEntry pivot = right;
    const bool by_src = left.src != right.src;
    pivot.header.t_info = by_src ? pivot_of_src : sizeof(IndexEntry);
    ItemPointerSet(&pivot.header.t_tid, 0, 0);
    BTreeTupleSetNAtts(&pivot.header, by_src ? 1 : 2, false);
    return pivot;
}

// Less than every key: the first of its level.
IndexEntry least_pivot() {
    IndexEntry pivot = {};
    pivot.header.t_info = sizeof(IndexTupleData);
    BTreeTupleSetNAtts(&pivot.header, 0, false);
    return pivot;
}

BTPageOpaque opaque_of(Page page) {
    return reinterpret_cast<BTPageOpaque>(PageGetSpecialPointer(page));
}

// Before the page's first item, if it gets a high key, the line pointer of that is left free.
void begin_page(Page page, BlockNumber left, uint32 level) {
    _bt_pageinit(page, BLCKSZ);
    BTPageOpaque opaque = opaque_of(page);
    opaque->btpo_prev = left;
    opaque->btpo_next = P_NONE;
    opaque->btpo_level = level;
    opaque->btpo_flags = level == 0 ? BTP_LEAF : 0;
    opaque->btpo_cycleid = 0;
    reinterpret_cast<PageHeader>(page)->pd_lower += sizeof(ItemIdData);
}

void add_item(Page page, const IndexEntry& entry) {
    auto* header = reinterpret_cast<PageHeader>(page);
    const Size bytes = IndexTupleSize(&entry.header);
    const auto offset = static_cast<LocationIndex>(header->pd_upper - MAXALIGN(bytes));
    auto* item = reinterpret_cast<ItemId>(static_cast<char*>(page) + header->pd_lower);
    ItemIdSetNormal(item, offset, static_cast<unsigned>(bytes));
    memcpy(static_cast<char*>(page) + offset, &entry, bytes);
    header->pd_lower = static_cast<LocationIndex>(header->pd_lower + sizeof(ItemIdData));
    header->pd_upper = offset;
}

// There is a page on the right, which begins at this pivot.
void set_high_key(Page page, const IndexEntry& pivot, BlockNumber right) {
    auto* header = reinterpret_cast<PageHeader>(page);
    const Size bytes = IndexTupleSize(&pivot.header);
    const auto offset = static_cast<LocationIndex>(header->pd_upper - MAXALIGN(bytes));
    ItemIdSetNormal(&header->pd_linp[P_HIKEY - 1], offset, static_cast<unsigned>(bytes));
    memcpy(static_cast<char*>(page) + offset, &pivot, bytes);
    header->pd_upper = offset;
    opaque_of(page)->btpo_next = right;
}

// The rightmost page of a level has no high key: its items move up.
void drop_high_key(Page page) {
    auto* header = reinterpret_cast<PageHeader>(page);
    const Size items = (header->pd_lower - SizeOfPageHeaderData) / sizeof(ItemIdData) - 1;
    memmove(header->pd_linp, header->pd_linp + 1, items * sizeof(ItemIdData));
    header->pd_lower = static_cast<LocationIndex>(header->pd_lower - sizeof(ItemIdData));
}

}  // namespace

struct EdgeIndex {
    Relation index;
    BulkPages* pages;
    Page leaf;          // not added to `pages` yet: whether there is one on its right is not known
    BlockNumber block;  // that it gets
    IndexEntry last;
    Size free;  // what a leaf leaves to later entries
    Level leaves;
};

namespace {

Size room_on(Page page) {
    const auto* header = reinterpret_cast<PageHeader>(page);
    return static_cast<Size>(header->pd_upper - header->pd_lower);
}

void write_leaf(EdgeIndex* to) {
    memcpy(add_page(to->pages), to->leaf, BLCKSZ);
}

// Writes a level of pages that lead to those of the level below. Returns it.
Level write_level(EdgeIndex* to, const Level& below, uint32 number) {
    constexpr Size free = BLCKSZ * (100 - BTREE_NONLEAF_FILLFACTOR) / 100;
    Level level = new_level();
    Page page = to->leaf;  // no longer used
    BlockNumber left = P_NONE;
    for (Size i = 0; i < below.count; ++i) {
        const BlockNumber block = next_block(to->pages);
        IndexEntry item = below.pages[i].low;
        if (i == 0 || room_on(page) < entry_room + sizeof(IndexEntry) + free) {
            if (i > 0) {
                set_high_key(page, item, block + 1);
                memcpy(add_page(to->pages), page, BLCKSZ);
                left = block;
            }
            begin_page(page, left, number);
            remember(&level, {item, next_block(to->pages)});
            item = least_pivot();
        }
        BTreeTupleSetDownLink(&item.header, below.pages[i].block);
        add_item(page, item);
    }
    drop_high_key(page);
    if (level.count == 1) opaque_of(page)->btpo_flags |= BTP_ROOT;
    memcpy(add_page(to->pages), page, BLCKSZ);
    return level;
}

void set_root(EdgeIndex* to, BlockNumber root, uint32 level) {
    const Buffer buffer = ReadBuffer(to->index, BTREE_METAPAGE);
    LockBuffer(buffer, compat_lock_mode(BUFFER_LOCK_EXCLUSIVE));
    Page page = BufferGetPage(buffer);
    const bool equal_images = BTPageGetMeta(page)->btm_allequalimage;
    START_CRIT_SECTION();
    _bt_initmetapage(page, root, level, equal_images);
    MarkBufferDirty(buffer);
    if (RelationNeedsWAL(to->index)) log_newpage_buffer(buffer, true);
    END_CRIT_SECTION();
    UnlockReleaseBuffer(buffer);
}

}  // namespace

EdgeIndex* open_edge_index(Relation index) {
    EdgeIndex* to = static_cast<EdgeIndex*>(palloc0(sizeof(EdgeIndex)));
    to->index = index;
    to->pages = open_bulk_pages(index);
    to->leaf = static_cast<Page>(palloc(BLCKSZ));
    to->free = static_cast<Size>(BTGetTargetPageFreeSpace(index));
    to->leaves = new_level();
    return to;
}

bool put_entry(EdgeIndex* to, int64 src, int32 rank, const ItemPointerData& row) {
    IndexEntry entry = {};
    entry.header.t_tid = row;
    entry.header.t_info = sizeof(IndexEntry);
    entry.src = src;
    entry.rank = rank;
    const bool first = to->leaves.count == 0;
    const IndexEntry& last = to->last;
    if (!first && (src < last.src || (src == last.src && rank <= last.rank))) return false;
    if (first || room_on(to->leaf) < entry_room + sizeof(IndexEntry) + to->free) {
        IndexEntry low = least_pivot();
        if (!first) {
            low = pivot_between(last, entry);
            set_high_key(to->leaf, low, to->block + 1);
            write_leaf(to);
        }
        const BlockNumber left = first ? P_NONE : to->block;
        to->block = next_block(to->pages);
        begin_page(to->leaf, left, 0);
        remember(&to->leaves, {low, to->block});
    }
    add_item(to->leaf, entry);
    to->last = entry;
    return true;
}

void end_edge_index(EdgeIndex* to) {
    if (to->leaves.count == 0) return;
    drop_high_key(to->leaf);
    if (to->leaves.count == 1) opaque_of(to->leaf)->btpo_flags |= BTP_ROOT;
    write_leaf(to);
    Level level = to->leaves;
    uint32 number = 0;
    while (level.count > 1) level = write_level(to, level, ++number);
    close_bulk_pages(to->pages);
    set_root(to, level.pages[0].block, number);
}

}  // namespace pgwarp
