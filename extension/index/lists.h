// Walking inverted lists under the rule that keeps readers right without long locks.
#pragma once

#include "extension/index/format.h"
#include "extension/index/tid.h"

extern "C" {
#include "storage/bufmgr.h"
#include "utils/rel.h"
}

namespace pgwarp {

// Sees each page of a list under its share lock. It may see a page twice, and an entry on two
// pages, when a list changed during the walk; what it gathers must not depend on that.
struct ListVisitor {
    void (*visit)(void* state, uint32 list, Page page, const EntryLayout& layout);
    void* state;
    // Called after each visited page, with no lock held; may be null.
    void (*between_pages)(void* state) = nullptr;
    // Called once before lists that changed are walked again; may be null. Where several lists are
    // walked it says nothing of which.
    void (*walk_again)(void* state) = nullptr;
    // Where to say which page will probably be visited next, null where nobody knows, for a visitor
    // that brings it near itself. It is not pinned: nothing of it may be believed.
    Page* coming = nullptr;
};

// Walks these lists so that every entry that was in them when the walk began, and is still in
// them, is seen. `order` gives their numbers.
void walk_lists(Relation index, const MetaPage& meta, const uint32* order, uint32 count,
                const ListVisitor& visitor);

// Reports a snapshot that old_snapshot_threshold has ended, if one of these lists has changed since
// it was taken: VACUUM may have removed entries of rows that it sees. To be called after the walk.
// Whatever removes an entry changes its list's place, so the places tell.
void check_snapshot(Relation index, const MetaPage& meta, const uint32* lists, uint32 count,
                    Snapshot snapshot);

}  // namespace pgwarp
