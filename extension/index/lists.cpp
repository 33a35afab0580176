// A reader reads a list's generation, walks the chain page by page, each page under a short share
// lock, and reads the generation again. If the generation changed, VACUUM may have moved an entry
// from a page not yet read to one already read. A page that was recycled meanwhile names another
// list. All of this is page content, so it works on a standby too.
//
// The reader walks a changed list once more, from its tail to its head. VACUUM moves entries in
// that direction only, so the reader misses none: it saw an entry near the tail, or will see it
// where it went. The reader locks one page at a time, and VACUUM cannot make it walk forever.

#include <algorithm>

#include "extension/index/buffers.h"
#include "extension/index/lists.h"
#include "extension/index/page.h"
#include "extension/index/place.h"
#include "extension/util/disk_reads.h"
#include "extension/util/pause.h"

extern "C" {
#include "miscadmin.h"
#include "utils/snapmgr.h"
#include "utils/spccache.h"
}

namespace pgwarp {

namespace {

// How a walk along a chain ended.
struct Walk {
    // Null: the walk reached the end of the chain. Otherwise why it stopped early, which is damage
    // if the list has kept its generation.
    const char* broken;
    BlockNumber at;  // the last page of the walk
    BlockNumber pages;
};

// Reads and share-locks the next page of a walk; false: the walk is broken.
bool step(Relation index, BlockNumber block, uint32 list, const EntryLayout& layout,
          const ListPlace& place, Walk* walk, Buffer* buffer) {
    walk->at = block;
    if (!step_is_possible(index, place, &walk->pages))
        walk->broken = chain_has_loop;
    else if (!read_list_page(index, block, list, layout, BUFFER_LOCK_SHARE, buffer))
        walk->broken = "the chain of another list leads to it";
    return !walk->broken;
}

// Pages that a walk of lists will read, as far as they are known before: those of lists whose pages
// lie in a row, as a build writes them, and the first ones of others. While the walk works on a
// page, the kernel reads the next ones.
class PagesAhead {
  public:
    PagesAhead(Relation index, const ListPlace* places, uint32 count)
        : index_(index),
          places_(places),
          count_(count),
          distance_(
              static_cast<uint32>(get_tablespace_io_concurrency(index->rd_rel->reltablespace))) {}

    void begin_list(uint32 list) {
        list_ = list;
        named_ -= std::min(named_, known_pages_);
        known_pages_ = known(places_[list]);
        if (next_list_ >= list) return;
        next_list_ = list;
        next_page_ = named_ = 0;
    }

    // The walk is about to read this page of the list, counted from 0.
    void at(BlockNumber page) {
        if (distance_ == 0 || !reads_.needed()) return;
        const uint32 read = std::min<uint32>(page + 1, known_pages_);
        if (next_list_ == list_ && next_page_ < read) next_page_ = named_ = read;
        while (named_ < read + distance_ && next_list_ < count_) {
            const ListPlace& place = places_[next_list_];
            if (next_page_ < known(place)) {
                read_page_ahead(index_, place.head + next_page_);
                ++next_page_;
                ++named_;
            } else {
                ++next_list_;
                next_page_ = 0;
            }
        }
    }

  private:
    static uint32 known(const ListPlace& place) {
        if (!BlockNumberIsValid(place.head)) return 0;
        return place.tail - place.head + 1 == place.pages ? place.pages : 1;
    }

    DiskReads reads_;
    Relation index_;
    const ListPlace* places_;
    uint32 count_;
    uint32 distance_;
    uint32 list_ = 0;         // the current one
    uint32 known_pages_ = 0;  // of it
    uint32 named_ = 0;        // pages, from the first of the current list on
    uint32 next_list_ = 0;
    uint32 next_page_ = 0;
};

// `following`: the page that the caller reads after the last page of this list, to prefetch it.
Walk walk_chain(Relation index, uint32 list, const EntryLayout& layout, const ListPlace& place,
                BlockNumber following, PagesAhead* ahead, const ListVisitor& visitor) {
    Walk walk = {};
    for (BlockNumber block = place.head; BlockNumberIsValid(block);) {
        Buffer buffer;
        ahead->at(walk.pages);
        if (!step(index, block, list, layout, place, &walk, &buffer)) break;
        Page page = BufferGetPage(buffer);
        const BlockNumber next = page_tail(page)->next;
        // The prefetch overlaps with the work on this page.
        Page coming = prefetch_list_page(index, BlockNumberIsValid(next) ? next : following);
        // Leave an adjacent page to the processor's prefetcher, which does better.
        if (coming == static_cast<char*>(page) + BLCKSZ) coming = nullptr;
        if (visitor.coming)
            *visitor.coming = coming;
        else if (coming)
            prefetch_entries(coming, layout);
        const bool entries = page_tail(page)->count > 0;
        if (visitor.block) *visitor.block = block;
        if (entries) visitor.visit(visitor.state, list, page, layout);
        block = next;
        UnlockReleaseBuffer(buffer);
        pause_at("walk");
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

// Walks from the tail to the head. Invariant: an entry that was in the list when the walk began,
// and is still in it, was seen, or lies on the current page or before it. The invariant holds
// - when VACUUM moves an entry, because it moves the list's last entry to an earlier place;
// - on a page that left the list and came back: the page is a later tail, and all entries that this
//   walk has not seen lie before it;
// - at a new tail. The walk restarts there if a page has left for another list, or if pages left
// and
//   came back until the walk was longer than any list.
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
            if (visitor.block) *visitor.block = block;
            if (entries) visitor.visit(visitor.state, list, page, layout);
            block = page_tail(page)->prev;
            UnlockReleaseBuffer(buffer);
            pause_at("walk");
            if (entries && visitor.between_pages) visitor.between_pages(visitor.state);
            CHECK_FOR_INTERRUPTS();
        }
        if (read_place(index, meta, list).generation == place.generation)
            check_walk(index, place, walk);
        broken = walk.broken;
    } while (broken);
}

}  // namespace

uint32 walk_lists(Relation index, const MetaPage& meta, const uint32* order, uint32 count,
                  const ListVisitor& visitor) {
    uint32* lists = static_cast<uint32*>(palloc(Max(count, 1u) * sizeof(uint32)));
    ListPlace* before = static_cast<ListPlace*>(palloc(Max(count, 1u) * sizeof(ListPlace)));
    ListPlace* after = static_cast<ListPlace*>(palloc(Max(count, 1u) * sizeof(ListPlace)));
    Walk* walks = static_cast<Walk*>(palloc(Max(count, 1u) * sizeof(Walk)));
    for (uint32 i = 0; i < count; ++i) lists[i] = order[i];

    read_places(index, meta, lists, count, before);
    PagesAhead ahead(index, before, count);
    for (uint32 i = 0; i < count; ++i) {
        if (i > 0 && visitor.goes_on && !visitor.goes_on(visitor.state, i)) {
            count = i;
            break;
        }
        ahead.begin_list(i);
        walks[i] =
            walk_chain(index, lists[i], layout_of(meta, lists[i]), before[i],
                       i + 1 < count ? before[i + 1].head : InvalidBlockNumber, &ahead, visitor);
    }
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
    return count;
}

void check_snapshot(Relation index, const MetaPage& meta, const uint32* lists, uint32 count,
                    Snapshot snapshot) {
    if (!compat_old_snapshots_end()) return;
    // Lists that were replaced do not change any more, but the metapage does in each VACUUM.
    const uint32 replaced = read_meta(index).build_id != meta.build_id;
    for (uint32 i = 0; i < count + replaced; ++i) {
        const Buffer buffer = lock_place(index, meta, i < count ? lists[i] : pending_list);
        compat_check_snapshot(snapshot, index, BufferGetPage(buffer));
        UnlockReleaseBuffer(buffer);
    }
}

}  // namespace pgwarp
