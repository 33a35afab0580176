// Walks inverted lists, one short page lock at a time, so that concurrent changes hide no entry.
#pragma once

#include "extension/index/format.h"
#include "extension/index/tid.h"

extern "C" {
#include "storage/bufmgr.h"
#include "utils/rel.h"
}

namespace pgwarp {

// A visitor sees each page of a list under the page's share lock. If the list changes during the
// walk, it may see a page twice, and an entry on two pages. Its result must not depend on that.
struct ListVisitor {
    void (*visit)(void* state, uint32 list, Page page, const EntryLayout& layout);
    void* state;
    // Called after each visited page, with no lock held; may be null.
    void (*between_pages)(void* state) = nullptr;
    // Called once before the lists that changed are walked again; may be null. Does not tell which
    // of several lists changed.
    void (*walk_again)(void* state) = nullptr;
    // If set, the walk stores the page that it will probably visit next here (null: unknown), and
    // the visitor prefetches that page's entries. The page is not pinned: never use its content.
    Page* coming = nullptr;
    // Called before each list but the first, with its place in the order; false ends the walk. May
    // be null.
    bool (*goes_on)(void* state, uint32 place) = nullptr;
    // If set, the walk stores the number of each page here before it is visited.
    BlockNumber* block = nullptr;
};

// Walks the lists numbered order[0 .. count). The visitor sees every entry that was in them when
// the walk began and is still in them. Returns how many lists were walked.
uint32 walk_lists(Relation index, const MetaPage& meta, const uint32* order, uint32 count,
                  const ListVisitor& visitor);

// Raises "snapshot too old" if old_snapshot_threshold has ended the snapshot and one of these lists
// has changed since it was taken: VACUUM may have removed entries of rows that the snapshot sees.
// Call this after the walk. Removing an entry changes the list's place, so only places are checked.
void check_snapshot(Relation index, const MetaPage& meta, const uint32* lists, uint32 count,
                    Snapshot snapshot);

}  // namespace pgwarp
