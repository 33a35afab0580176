// A B-tree on (bigint, integer), built from entries in its order: PostgreSQL's format of version 4
// (see its nbtree/README), which is the same from 12 on.
#pragma once

#include "extension/graph/bulk_pages.h"
#include "extension/graph/edge_layout.h"

namespace pgwarp {

uint32 keys_per_leaf(Relation index);
// Fills a leaf of a task, by its number among these.
void fill_leaf(const EdgeLayout& layout, const EdgeTask& task, uint32 number, Page page);

// What the upper levels need.
struct EdgeIndex;
EdgeIndex* open_edge_index();
// The first leaf of the index, or one that begins behind the key `last`.
void note_leaf(EdgeIndex* index, BlockNumber block, const EdgeKey* last, const EdgeKey& first);
// All leaves are added to the file. Writes the upper levels and the metapage.
void end_edge_index(EdgeIndex* index, BulkFile* file);

}  // namespace pgwarp
