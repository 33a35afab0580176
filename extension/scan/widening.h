// Whether a scan with conditions has looked into enough lists.
//
// The recall curve says how many lists the k nearest rows lie in. The k nearest rows that pass a
// condition may lie anywhere: in more lists the fewer rows pass, and far away where the condition
// has to do with the vector. So the scan decides by what this query's lists show. Let d be the
// distance by code of the k-th passing entry so far. All entries nearer than d, passing or not, are
// the neighborhood that the scan has to cover. The scan takes lists nearest first, and counts the
// entries of the neighborhood in the last half of its lists, and in the quarter before. These
// counts fall: where what is left, by those two, is a small share of all, the scan has seen enough.
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
    uint32 rank;   // of its list
};

struct Widening {
    WideningSample* samples;
    Size count;
    Size room;
    uint32 thinned;      // the sample has one in this many of the entries offered; 0: all
    uint32 skipped;      // offered since the last one taken
    uint32 places;       // counts pages of which some entries were offered
    uint32 passed_over;  // pages since the last of these
    // During the walks that this is for; others find the same entries again.
    bool samples_entries;
    // Entries in the lists walked so far, and those of them that passed.
    double entries;
    double passing;
};

void reset_widening(Widening* widening);
// Adds an entry to the sample, if it takes any. Entries farther than `bound`, the farthest
// candidate that the scan keeps, need not be added. Allocates in the current memory context; runs
// while a page is locked, so that it does little.
void sample_entry(Widening* widening, const WideningSample& entry);
// Drops entries of the sample farther than `bound`.
void forget_beyond(Widening* widening, double bound);
// Whether entries within the distance that are not seen yet, after this many lists, are at most
// `missed` of all.
bool covers(const Widening& widening, uint32 lists, double distance, double missed);

// Entries of the neighborhood in all lists, in the last group of them, and in the one before.
struct GroupCounts {
    double all;
    double last;
    double before;
};
// Whether the lists to come have at most `missed` of all entries, if the groups are of one size, or
// each of twice the size of the one before.
bool rest_is_small(const GroupCounts& counts, double missed);

// The same for a search by the service, which counts by itself.
bool covers(const SearchedLists& searched, uint32 lists, double missed);

// How many times as many lists as the curve gives the last searches of this backend needed, with
// conditions that about this share of the entries passed. Queries unlike the rows of the table need
// more. A search that asks for too few lists is made again, which takes longer than some lists too
// many.
double list_width(uint64 build_id, double share);
// Whether the lists of the first search were enough.
void note_list_width(uint64 build_id, double share, bool enough);

}  // namespace pgwarp
