// Lists of neighbors that a repair changes, in memory.
#pragma once

#include "extension/graph/auto_search.h"

namespace pgwarp {

struct KeptLists {
    const int64* sources;  // (count), sorted, none twice
    Size count;
    uint32 k;
    NearRow* rows;    // (count)(k), nearest first
    uint32* lengths;  // (count)
    bool* changed;    // (count): to write
    // What the table has, from read_kept_lists().
    NearRow* written;       // (count)(k), by rank; the distance is NaN where there is none
    uint32* written_count;  // (count): of edges, whatever their ranks
};
// Empty lists. `sources` stay with the caller.
KeptLists new_kept_lists(const int64* sources, Size count, uint32 k);
// The number of a source; `count`: it is none of them.
Size find_list(const KeptLists& lists, int64 source);
// Adds a neighbor to a list, where it is one of the k nearest.
void enter_list(KeptLists* lists, Size list, const NearRow& row);

bool has_key(const int64* sorted, Size count, int64 key);
// Sorts keys and removes duplicates; returns how many are left.
Size sort_keys(int64* keys, Size count);

// (count): the distance of the last of k neighbors, infinite for lists with fewer.
float* read_radii(const KeptGraph& kept, const int64* sources, Size count);
// Reads what the graph has of these sources. Lists get it but for edges from and to keys among
// `without`, which is sorted, and stay unchanged until a row enters them.
void read_kept_lists(const KeptGraph& kept, KeptLists* lists, const int64* without,
                     Size without_count);
// The sources whose lists have one of these rows, sorted, none twice.
int64* find_sources(const KeptGraph& kept, const int64* rows, Size count, Size* found);

// Writes changed lists, which were read, to the graph.
struct KeptWriter;
KeptWriter* open_kept_writer(const KeptGraph& kept);
void write_kept_lists(KeptWriter* writer, const KeptLists& lists);
void close_kept_writer(KeptWriter* writer);

}  // namespace pgwarp
