// Changes of lists: appending, removing and moving entries.
#pragma once

#include "extension/index/page.h"

extern "C" {
#include "access/genam.h"
}

namespace pgwarp {

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

}  // namespace pgwarp
