// Offers entries of list pages to a selection of candidates, with their distances by code.
#pragma once

#include "kernels/list_plan.h"
#include "extension/scan/state.h"

namespace pgwarp {

// A walk of lists whose query decides how many it takes.
struct QueryWalk {
    ListWalk walk;
    uint32 first_place;  // of the lists that are walked now, among all
    Size least;          // candidates that are kept in any case
    Size narrowed_at;    // candidates at which the selection was narrowed last
};

struct GatherState {
    Relation index;
    ScanState* scan;
    CandidateSelection* selection;
    Page coming = nullptr;  // the next page, a hint: see ListVisitor
    // Receives all candidates of each page; null: the selection keeps only the nearest.
    CandidateOrder* ordered = nullptr;
    QueryWalk* walk = nullptr;  // null: all lists are walked
};

// Offers a page's entries, from `first` on, that pass the scan's conditions. `state` is a
// GatherState, after read_tables(). Called with the page locked.
void gather_from(void* state, uint32 list, Page page, const EntryLayout& layout, uint32 first);

// The first walk of a scan, list by list, for scans that are searched together (joint_search.cpp).
struct JointWalk {
    CandidateSelection selection;
    GatherState gather;
    Candidate* items;  // of the selection
    uint32 walked;     // lists
};
// After read_tables(). The selection keeps the nearest `wanted`.
JointWalk* begin_joint_walk(IndexScanDesc scan, ScanState* s, Size wanted);
// Walks one list: its nearest that was not walked.
void walk_one(IndexScanDesc scan, ScanState* s, JointWalk* walk, uint32 list);
// Ends the walk: `items` are sorted then. Returns how many there are.
Size end_joint_walk(IndexScanDesc scan, ScanState* s, JointWalk* walk);
// After the scan has ranked this many of them, nearest first.
void end_first_part(IndexScanDesc scan, ScanState* s, const Candidate* by_code, Size ranked,
                    Size count);

}  // namespace pgwarp
