#include <algorithm>
#include <cstring>

#include "extension/graph/edge_index.h"
#include "extension/util/large_memory.h"

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

void set_key(IndexEntry* entry, const EdgeKey& key) {
    entry->src = key.src;
    entry->rank = key.rank;
}

// The shortest key that is greater than `left`, and not greater than `right`. Keys are unique, so
// that no pivot needs the place of a row.
IndexEntry pivot_between(const EdgeKey& left, const EdgeKey& right) {
    IndexEntry pivot = {};
    set_key(&pivot, right);
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

uint32 keys_per_leaf(Relation index) {
    const Size room = BLCKSZ - SizeOfPageHeaderData - sizeof(ItemIdData) -
                      MAXALIGN(sizeof(BTPageOpaqueData)) -
                      static_cast<Size>(BTGetTargetPageFreeSpace(index));
    // The high key takes as much as an entry.
    return static_cast<uint32>((room - entry_room) / entry_room);
}

void fill_leaf(const EdgeLayout& layout, const EdgeTask& task, uint32 number, Page page) {
    const uint32 first = number * layout.keys_per_leaf;
    const uint32 end = std::min(task.count, first + layout.keys_per_leaf);
    const BlockNumber block = task.first + number;
    begin_page(page, block == layout.first_leaf ? P_NONE : block - 1, 0);
    IndexEntry entry = {};
    entry.header.t_info = sizeof(IndexEntry);
    // The numbers of the edges.
    uint64 edge = uint64{task.first - layout.first_leaf} * layout.keys_per_leaf + first;
    for (uint32 i = first; i < end; ++i, ++edge) {
        set_key(&entry, task.keys()[i]);
        ItemPointerSet(&entry.header.t_tid,
                       layout.first_page + static_cast<BlockNumber>(edge / layout.edges_per_page),
                       static_cast<OffsetNumber>(edge % layout.edges_per_page + 1));
        add_item(page, entry);
    }
    if (end == task.count && task.is_last) {
        drop_high_key(page);
        if (block == layout.first_leaf) opaque_of(page)->btpo_flags |= BTP_ROOT;
        return;
    }
    const EdgeKey& next = end == task.count ? task.next : task.keys()[end];
    set_high_key(page, pivot_between(task.keys()[end - 1], next), block + 1);
}

// --- upper levels

struct EdgeIndex {
    Level leaves;
};

EdgeIndex* open_edge_index() {
    EdgeIndex* index = static_cast<EdgeIndex*>(palloc0(sizeof(EdgeIndex)));
    index->leaves = new_level();
    return index;
}

void note_leaf(EdgeIndex* index, BlockNumber block, const EdgeKey* last, const EdgeKey& first) {
    remember(&index->leaves, {last ? pivot_between(*last, first) : least_pivot(), block});
}

namespace {

Size room_on(Page page) {
    const auto* header = reinterpret_cast<PageHeader>(page);
    return static_cast<Size>(header->pd_upper - header->pd_lower);
}

// Writes a level of pages that lead to those of the level below. Returns it.
Level write_level(BulkFile* file, const Level& below, uint32 number) {
    constexpr Size free = BLCKSZ * (100 - BTREE_NONLEAF_FILLFACTOR) / 100;
    Level level = new_level();
    char* page = alloc_pages(1);
    BlockNumber block = P_NONE;
    for (Size i = 0; i < below.count; ++i) {
        IndexEntry item = below.pages[i].low;
        if (i == 0 || room_on(page) < 2 * entry_room + free) {
            const BlockNumber next = add_blocks(file, 1);
            if (i > 0) {
                set_high_key(page, item, next);
                write_bulk_pages(file->relation, block, 1, page);
            }
            begin_page(page, block, number);
            block = next;
            remember(&level, {item, block});
            item = least_pivot();
        }
        BTreeTupleSetDownLink(&item.header, below.pages[i].block);
        add_item(page, item);
    }
    drop_high_key(page);
    if (level.count == 1) opaque_of(page)->btpo_flags |= BTP_ROOT;
    write_bulk_pages(file->relation, block, 1, page);
    return level;
}

void set_root(Relation index, BlockNumber root, uint32 level) {
    const Buffer buffer = ReadBuffer(index, BTREE_METAPAGE);
    LockBuffer(buffer, compat_lock_mode(BUFFER_LOCK_EXCLUSIVE));
    Page page = BufferGetPage(buffer);
    const bool equal_images = BTPageGetMeta(page)->btm_allequalimage;
    START_CRIT_SECTION();
    _bt_initmetapage(page, root, level, equal_images);
    MarkBufferDirty(buffer);
    if (RelationNeedsWAL(index)) log_newpage_buffer(buffer, true);
    END_CRIT_SECTION();
    UnlockReleaseBuffer(buffer);
}

}  // namespace

void end_edge_index(EdgeIndex* index, BulkFile* file) {
    if (index->leaves.count == 0) return;
    Level level = index->leaves;
    uint32 number = 0;
    while (level.count > 1) level = write_level(file, level, ++number);
    set_root(file->relation, level.pages[0].block, number);
}

}  // namespace pgwarp
