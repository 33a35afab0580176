// Changes of lists: appending, removing and moving entries.
#pragma once

#include "extension/index/page.h"

extern "C" {
#include "access/genam.h"
}

namespace pgwarp {

// An insert holds this lock from reading the metapage until its entry is in a list. VACUUM takes it
// alone while it replaces the lists: no entry goes to lists that were replaced.
void lock_lists_of_inserts(Relation index, LOCKMODE mode);
void unlock_lists_of_inserts(Relation index, LOCKMODE mode);

// Appends to the tail of a list.
void append_entry(Relation index, const MetaPage& meta, uint32 list, const Entry& entry);

// Makes the lists of `next` the current ones, and adds these TIDs, at most most_left_tids, to the
// pending list, in one WAL record: one new page holds them. The lists before are the other lists
// then. The caller holds the lock of inserts.
inline constexpr uint32 most_left_tids = max_page_entries;
void replace_lists(Relation index, const MetaPage& next, const uint64* tids, uint32 count);

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

// Of all pages of a list.
void vacuum_list(Relation index, const MetaPage& meta, uint32 list, Removal* removal);

// Frees the last page of a list that VACUUM alone uses, if no entry is on it.
void drop_empty_tail(Relation index, const MetaPage& meta, uint32 list);

// Moves the entry of this TID from a page of the pending list to another list, in one WAL record;
// the last entry of the pending list takes its slot. False, and nothing moved, where the page does
// not hold it (any more).
bool move_pending_entry(Relation index, const MetaPage& meta, BlockNumber block, uint32 list,
                        const Entry& entry);

}  // namespace pgwarp
