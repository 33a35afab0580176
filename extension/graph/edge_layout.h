// Where the edges of a new graph's table are on its pages, and their keys in the leaves of its
// primary key.
//
// Where keys are integers, all rows have one layout: (src bigint, rank integer, dst bigint,
// distance real), without nulls and variable lengths. So each page holds the same number of them,
// each leaf the same number of keys, and an edge's number tells its place in both.
#pragma once

#include "extension/compat.h"

extern "C" {
#include "storage/block.h"
}

namespace pgwarp {

// Flat: it lies in shared memory.
struct EdgeLayout {
    Oid table, index;
    BlockNumber first_page, first_leaf;
    uint32 edges_per_page;
    uint32 keys_per_leaf;
    // A row, of which an edge is a copy with other values, and where these are.
    alignas(8) char row[64];
    uint32 row_length;
    uint32 src, rank, dst, distance;
};

struct EdgeKey {
    int64 src;
    int32 rank;
};
struct TableEdge {
    int64 src;
    int64 dst;
    int32 rank;
    float4 distance;
};

// Some pages, or leaves, to be filled with edges and written: what one process does at a time.
struct EdgeTask {
    bool of_index;
    bool is_last;       // there is no leaf behind these
    BlockNumber first;  // of its blocks
    uint32 count;
    EdgeKey next;  // of the leaf behind these
    // Followed by (count) TableEdge, or EdgeKey.

    TableEdge* edges() { return reinterpret_cast<TableEdge*>(this + 1); }
    const TableEdge* edges() const { return reinterpret_cast<const TableEdge*>(this + 1); }
    EdgeKey* keys() { return reinterpret_cast<EdgeKey*>(this + 1); }
    const EdgeKey* keys() const { return reinterpret_cast<const EdgeKey*>(this + 1); }
    Size bytes() const {
        return sizeof(EdgeTask) + count * (of_index ? sizeof(EdgeKey) : sizeof(TableEdge));
    }
};

}  // namespace pgwarp
