// Offers entries of list pages to a selection of candidates, with their distances by code.
#pragma once

#include "kernels/list_effort.h"
#include "extension/scan/state.h"

namespace pgwarp {

// A walk of lists whose query decides how many it takes (kernels/list_effort.h).
struct QueryEffort {
    ListLimit limit;
    uint32 first_place;  // of the lists that are walked now, among all
    Size least;          // candidates that are ranked in any case
    Size narrowed_at;    // candidates at which the selection was narrowed last
    // Once there are first_entries: stop until the caller has set the radius.
    bool waits_for_radius = false;
};

struct GatherState {
    Relation index;
    ScanState* scan;
    CandidateSelection* selection;
    Page coming = nullptr;  // the next page, a hint: see ListVisitor
    // Receives all candidates of each page; null: the selection keeps only the nearest.
    CandidateOrder* ordered = nullptr;
    QueryEffort* effort = nullptr;  // null: all lists are walked
};

// Offers a page's entries, from `first` on, that pass the scan's conditions. `state` is a
// GatherState, after read_tables(). Called with the page locked.
void gather_from(void* state, uint32 list, Page page, const EntryLayout& layout, uint32 first);

// The first walk of a scan in steps, for scans that are searched together (joint_search.cpp). The
// caller sets the effort before each step.
struct SteppedWalk {
    CandidateSelection selection;
    GatherState gather;
    QueryEffort effort;
    Candidate* items;  // of the selection
    uint32 walked;     // lists
};
// After read_tables(). The selection keeps the nearest `wanted`.
SteppedWalk* begin_steps(IndexScanDesc scan, ScanState* s, Size wanted);
// Walks lists while the query takes them.
void walk_step(IndexScanDesc scan, ScanState* s, SteppedWalk* walk);
// Ends the walk: `items` are sorted then. Returns how many there are.
Size end_steps(ScanState* s, SteppedWalk* walk);
// After the scan has ranked this many of them, nearest first, up to `last`; of `count`.
void end_first_part(IndexScanDesc scan, ScanState* s, Size ranked, Size count,
                    const Candidate& last);

}  // namespace pgwarp
