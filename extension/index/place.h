// The places of lists: in the directory, the pending list's on the metapage.
#pragma once

#include "extension/index/format.h"

extern "C" {
#include "storage/bufmgr.h"
#include "utils/rel.h"
}

namespace pgwarp {

ListPlace read_place(Relation index, const MetaPage& meta, uint32 list);

// The places of several lists, locking each directory page once.
void read_places(Relation index, const MetaPage& meta, const uint32* lists, uint32 count,
                 ListPlace* places);

// The number of entries: all pages of a list but the last are full.
int64 count_entries(Relation index, const MetaPage& meta, uint32 list);
// Those of all lists, without the pending one.
uint64 count_entries(Relation index, const MetaPage& meta);

// Locks a list's place in share mode. Until the caller releases the buffer, the list neither grows
// by a page nor loses an entry.
Buffer lock_place(Relation index, const MetaPage& meta, uint32 list);
ListPlace place_of(Buffer locked, const MetaPage& meta, uint32 list);

// --- for code that changes a place

// The block and slot of a list's place.
struct PlaceAddress {
    BlockNumber block;
    PageKind kind;
    uint32 slot;
};

PlaceAddress place_address(const MetaPage& meta, uint32 list);
// On the page at its address.
ListPlace* place_on(Page page, const PlaceAddress& address);

}  // namespace pgwarp
