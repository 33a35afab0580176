// Offers entries of list pages to a selection of candidates, with their distances by code.
#pragma once

#include "kernels/list_plan.h"
#include "extension/scan/state.h"

namespace pgwarp {

// The distance by code of the k-th nearest candidate of several walks.
struct CommonRadius {
    double kth = std::numeric_limits<double>::infinity();
    double distance_of(size_t) const { return kth; }
};

// A walk of lists whose query decides how many it takes.
struct QueryWalk {
    ListWalk walk;
    const Effort* effort;        // of the whole search
    const CommonRadius* common;  // null: no other part is walked
    uint32 first_place;          // of the lists that are walked now, among all
    Size least;                  // candidates that are kept in any case
    Size tightened_at;           // candidates at which the selection was tightened last
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

}  // namespace pgwarp
