// A reader takes a list's generation, walks the chain page by page, each under its own short share
// lock, and takes the generation again. If it changed, an entry may have moved from a page not yet
// seen to one already passed, and the list is walked once more. A page that was recycled meanwhile
// names another list. All of this is in page content, so it holds on a standby as well.
//
// VACUUM could keep a reader walking: after a few rounds the reader holds the list's place in share
// mode instead, which keeps VACUUM, and the growth of the list, out. Then it only visits: what the
// visitor does between pages may take long, or run users' code, and waits until the place is free.

#include "extension/ivfpq_buffers.h"
#include "extension/ivfpq_lists.h"
#include "extension/ivfpq_page.h"

extern "C" {
#include "miscadmin.h"
}

namespace pgwarp {

namespace {

constexpr int walks_before_lock = 3;

// How a walk along a chain ended.
struct Walk {
    bool broken;  // at a page that belongs to another list now
    BlockNumber pages;
};

// `following`: the page that will be read after the last of this list.
Walk walk_chain(Relation index, uint32 list, const EntryLayout& layout, const ListPlace& place,
                BlockNumber following, const ListVisitor& visitor) {
    Walk walk = {};
    for (BlockNumber block = place.head; BlockNumberIsValid(block);) {
        count_step(index, block, place, &walk.pages);
        Buffer buffer;
        walk.broken = !read_list_page(index, block, list, layout, BUFFER_LOCK_SHARE, &buffer);
        if (walk.broken) break;
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

// A list that kept its generation has lost no page: a chain that ends early is damaged.
void check_length(Relation index, const ListPlace& place, const Walk& walk) {
    if (walk.pages < place.pages)
        report_damage(index, place.tail, "the chain of its list does not lead to it");
}

void walk_locked(Relation index, const MetaPage& meta, uint32 list, const ListVisitor& visitor) {
    const Buffer buffer = lock_place(index, meta, list);
    const EntryLayout layout = layout_of(meta, list);
    const ListPlace place = place_of(buffer, meta, list);
    const ListVisitor visits_only{visitor.visit, visitor.state, nullptr, nullptr, visitor.coming};
    const Walk walk = walk_chain(index, list, layout, place, InvalidBlockNumber, visits_only);
    if (walk.broken) report_damage(index, place.head, "its chain leads to a page of another list");
    check_length(index, place, walk);
    UnlockReleaseBuffer(buffer);
    if (visitor.between_pages) visitor.between_pages(visitor.state);
}

}  // namespace

void walk_lists(Relation index, const MetaPage& meta, const uint32* order, uint32 count,
                const ListVisitor& visitor) {
    uint32* lists = static_cast<uint32*>(palloc(Max(count, 1u) * sizeof(uint32)));
    ListPlace* before = static_cast<ListPlace*>(palloc(Max(count, 1u) * sizeof(ListPlace)));
    ListPlace* after = static_cast<ListPlace*>(palloc(Max(count, 1u) * sizeof(ListPlace)));
    Walk* walks = static_cast<Walk*>(palloc(Max(count, 1u) * sizeof(Walk)));
    for (uint32 i = 0; i < count; ++i) lists[i] = order[i];

    for (int walk = 0; count > 0; ++walk) {
        if (walk > 0 && visitor.walk_again) visitor.walk_again(visitor.state);
        if (walk == walks_before_lock) {
            for (uint32 i = 0; i < count; ++i) walk_locked(index, meta, lists[i], visitor);
            break;
        }
        read_places(index, meta, lists, count, before);
        for (uint32 i = 0; i < count; ++i)
            walks[i] = walk_chain(index, lists[i], layout_of(meta, lists[i]), before[i],
                                  i + 1 < count ? before[i + 1].head : InvalidBlockNumber, visitor);
        read_places(index, meta, lists, count, after);
        uint32 changed = 0;
        for (uint32 i = 0; i < count; ++i)
            if (walks[i].broken || after[i].generation != before[i].generation)
                lists[changed++] = lists[i];
            else
                check_length(index, before[i], walks[i]);
        count = changed;
    }
    pfree(lists);
    pfree(before);
    pfree(after);
    pfree(walks);
}

}  // namespace pgwarp
