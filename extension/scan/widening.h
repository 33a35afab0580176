// Whether a scan with conditions has looked into enough lists.
//
// The recall curve says how many lists the k nearest rows lie in. The k nearest rows that pass a
// condition may lie anywhere: in more lists the fewer rows pass, and far away where the condition
// has to do with the vector. So the scan decides by what this query's lists show. Let d be the
// distance by code of the k-th passing entry so far. All entries nearer than d, passing or not, are
// the neighborhood that the scan has to cover. The scan takes lists in groups, nearest first, and
// counts the entries of the neighborhood in each group. These counts fall from group to group:
// where what is left, by the last two, is a small share of all, the scan has seen enough.
//
// Counting a sample of the entries suffices. A condition that few rows pass has a large
// neighborhood.
#pragma once

#include "kernels/list_store.h"
#include "extension/compat.h"

namespace pgwarp {

struct WideningSample {
    float distance;
    float weight;  // entries that it stands for
    uint32 group;
};

struct Widening {
    WideningSample* samples;
    Size count;
    Size room;
    uint32 groups;
    uint32 thinned;  // the sample has one in this many of the entries offered; 0: all
    uint32 skipped;  // offered since the last one taken
    // Entries in the lists walked so far, and those of them that passed.
    double entries;
    double passing;
};

// Adds an entry to the sample. Entries farther than `bound`, the farthest candidate that the scan
// keeps, need not be added. Allocates in the current memory context; runs while a page is locked,
// so that it does little.
void sample_entry(Widening* widening, float distance, float weight);
// After a group of lists: drops entries of the sample farther than `bound`.
void end_widening_group(Widening* widening, double bound);
// Whether entries within the distance that are not seen yet are at most `missed` of all.
bool covers(const Widening& widening, double distance, double missed);

// The same for a search by the service, which counts by itself. Its last two groups are the last
// half of its lists, and a quarter before them.
bool covers(const SearchedLists& searched, double missed);

}  // namespace pgwarp
