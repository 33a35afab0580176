// The pages of a new edge table and of its primary key, filled directly.
//
// The index needs no sort where edges come in its order, (src, rank): its leaves are filled along
// with the table's pages, and its upper levels at the end.
#pragma once

#include "extension/compat.h"

extern "C" {
#include "utils/rel.h"
}

namespace pgwarp {

// Whether the new table is one that edge pages suit: an empty heap of these columns without a need
// for more than its pages (other indexes, logical decoding, local buffers).
bool takes_edge_pages(Relation table);
// Whether this index is what ADD PRIMARY KEY (src, rank) makes of an empty table.
bool takes_edge_leaves(Relation index);

struct EdgePages;
// Both relations stay open until end_edge_pages().
EdgePages* open_edge_pages(Relation table, Relation index);
// About this many edges come next, one after the other: parallel workers may write them.
void expect_edges(EdgePages* pages, Size edges);
void end_expected_edges(EdgePages* pages);
void put_edge(EdgePages* pages, int64 src, int32 rank, int64 dst, float4 distance);
// Returns whether the index is complete. False: edges did not come in its order, and the caller has
// to reindex it.
bool end_edge_pages(EdgePages* pages);

}  // namespace pgwarp
