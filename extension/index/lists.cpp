// A reader takes a list's generation, walks the chain page by page, each under its own short share
// lock, and takes the generation again. If it changed, an entry may have moved from a page not yet
// seen to one already passed. A page that was recycled meanwhile names another list. All of this is
// in page content, so it holds on a standby as well.
//
// A list that changed is walked once more, from its tail to its head. VACUUM moves entries in that
// direction only, so no entry passes such a reader by: the reader met it at the tail, or meets it
// where it went. It needs no lock but those of single pages, and VACUUM cannot keep it walking.

#include "extension/index/buffers.h"
#include "extension/index/lists.h"
#include "extension/index/page.h"

extern "C" {
#include "miscadmin.h"
#include "utils/snapmgr.h"
}

namespace pgwarp {

namespace {

// How a walk along a chain ended.
struct Walk {
    // Null: at its end. Otherwise the walk stopped before, and this is what is wrong with a list
    // that has kept its generation.
    const char* broken;
    BlockNumber at;  // where it stopped
    BlockNumber pages;
};

// The next page of a walk, locked; false: the walk is broken.
bool step(Relation index, BlockNumber block, uint32 list, const EntryLayout& layout,
          const ListPlace& place, Walk* walk, Buffer* buffer) {
    walk->at = block;
    if (!step_is_possible(index, place, &walk->pages))
        walk->broken = chain_has_loop;
    else if (!read_list_page(index, block, list, layout, BUFFER_LOCK_SHARE, buffer))
        walk->broken = "the chain of another list leads to it";
    return !walk->broken;
}

// `following`: the page that will be read after the last of this list.
Walk walk_chain(Relation index, uint32 list, const EntryLayout& layout, const ListPlace& place,
                BlockNumber following, const ListVisitor& visitor) {
    Walk walk = {};
    for (BlockNumber block = place.head; BlockNumberIsValid(block);) {
        Buffer buffer;
        if (!step(index, block, list, layout, place, &walk, &buffer)) break;
        Page page = BufferGetPage(buffer);
        const BlockNumber next = page_tail(page)->next;
        // Memory answers while this page is worked on.
        Page coming = expect_list_page(index, BlockNumberIsValid(next) ? next : following);
        // A page that lies behind this one comes by itself, and better so.
        if (coming == static_cast<char*>(page) + BLCKSZ) coming = nullptr;
        if (visitor.coming)
            *visitor.coming = coming;
        else if (coming)
            expect_entries(coming, layout);
        const bool entries = page_tail(page)->count > 0;
        if (entries) visitor.visit(visitor.state, list, page, layout);
        block = next;
        UnlockReleaseBuffer(buffer);
        if (entries && visitor.between_pages) visitor.between_pages(visitor.state);
        CHECK_FOR_INTERRUPTS();
    }
    return walk;
}

// A list that kept its generation has lost no page: a chain that ends early, or elsewhere, is
// damaged.
void check_walk(Relation index, const ListPlace& place, const Walk& walk) {
    if (walk.broken) report_damage(index, walk.at, walk.broken);
    if (walk.pages < place.pages)
        report_damage(index, place.tail, "the chain of its list does not lead to it");
}

// From the tail to the head. An entry that was in the list when the walk began, and is still in it,
// was seen, or lies on this page or before it. That holds
// - when VACUUM moves an entry, for it takes the last one of the list to an earlier place;
// - on a page that left the list and came back to it: it is a later tail, and what this walk has
//   not seen lies before it;
// - at a new tail, from where the walk begins again if a page has left for another list, or if
// pages
//   left and came back until the walk was longer than any list.
void walk_back(Relation index, const MetaPage& meta, uint32 list, const ListVisitor& visitor) {
    const EntryLayout layout = layout_of(meta, list);
    if (visitor.coming) *visitor.coming = nullptr;
    const char* broken;
    do {
        const ListPlace place = read_place(index, meta, list);
        Walk walk = {};
        for (BlockNumber block = place.tail; BlockNumberIsValid(block);) {
            Buffer buffer;
            if (!step(index, block, list, layout, place, &walk, &buffer)) break;
            Page page = BufferGetPage(buffer);
            const bool entries = page_tail(page)->count > 0;
            if (entries) visitor.visit(visitor.state, list, page, layout);
            block = page_tail(page)->prev;
            UnlockReleaseBuffer(buffer);
            if (entries && visitor.between_pages) visitor.between_pages(visitor.state);
            CHECK_FOR_INTERRUPTS();
        }
        if (read_place(index, meta, list).generation == place.generation)
            check_walk(index, place, walk);
        broken = walk.broken;
    } while (broken);
}

}  // namespace

void walk_lists(Relation index, const MetaPage& meta, const uint32* order, uint32 count,
                const ListVisitor& visitor) {
    uint32* lists = static_cast<uint32*>(palloc(Max(count, 1u) * sizeof(uint32)));
    ListPlace* before = static_cast<ListPlace*>(palloc(Max(count, 1u) * sizeof(ListPlace)));
    ListPlace* after = static_cast<ListPlace*>(palloc(Max(count, 1u) * sizeof(ListPlace)));
    Walk* walks = static_cast<Walk*>(palloc(Max(count, 1u) * sizeof(Walk)));
    for (uint32 i = 0; i < count; ++i) lists[i] = order[i];

    read_places(index, meta, lists, count, before);
    for (uint32 i = 0; i < count; ++i)
        walks[i] = walk_chain(index, lists[i], layout_of(meta, lists[i]), before[i],
                              i + 1 < count ? before[i + 1].head : InvalidBlockNumber, visitor);
    read_places(index, meta, lists, count, after);
    uint32 changed = 0;
    for (uint32 i = 0; i < count; ++i)
        if (after[i].generation != before[i].generation)
            lists[changed++] = lists[i];
        else
            check_walk(index, before[i], walks[i]);
    if (changed > 0 && visitor.walk_again) visitor.walk_again(visitor.state);
    for (uint32 i = 0; i < changed; ++i) walk_back(index, meta, lists[i], visitor);
    pfree(lists);
    pfree(before);
    pfree(after);
    pfree(walks);
}

void check_snapshot(Relation index, const MetaPage& meta, const uint32* lists, uint32 count,
                    Snapshot snapshot) {
    if (!compat_old_snapshots_end()) return;
    for (uint32 i = 0; i < count; ++i) {
        const Buffer buffer = lock_place(index, meta, lists[i]);
        compat_check_snapshot(snapshot, index, BufferGetPage(buffer));
        UnlockReleaseBuffer(buffer);
    }
}

}  // namespace pgwarp
