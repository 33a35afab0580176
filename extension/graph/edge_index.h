// A B-tree on (bigint, integer), built from entries in its order: PostgreSQL's format of version 4
// (see its nbtree/README), which is the same from 12 on.
#pragma once

#include "extension/graph/bulk_pages.h"

extern "C" {
#include "storage/itemptr.h"
}

namespace pgwarp {

struct EdgeIndex;
// The index is empty: it has a metapage only.
EdgeIndex* open_edge_index(Relation index);
// False: the entry is not greater than the one before. Nothing more may be put then, and the index
// is to be made anew.
bool put_entry(EdgeIndex* index, int64 src, int32 rank, const ItemPointerData& row);
// Writes the upper levels and the metapage.
void end_edge_index(EdgeIndex* index);

}  // namespace pgwarp
