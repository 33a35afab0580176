// What ordered scans cost with conditions from outside their index (conditions/): the rows of a
// bitmap of other indexes, in each way to search for these, or the keys of a semi-join.
#pragma once

#include "extension/am/shares.h"

namespace pgwarp {

struct BitmapCosts {
    struct Way {
        double first;  // rows, as many as LIMIT wants
        double startup;
        double total;
    };
    // `bitmap_rows`: that the planner expects.
    BitmapCosts(PlannerInfo* planner, IndexPath* ordered, double bitmap_rows);

    // Of rows as many as the bitmap has, without the bitmap's own cost: the scan finds them in the
    // lists; finds all rows there, and filters them; ranks the bitmap's rows.
    Way of_lists(double bitmap_rows) const;
    Way of_all(double bitmap_rows) const;
    Way of_rows(double bitmap_rows) const;

    PlannerInfo* root;
    IndexPath* path;
    PassingShares shares;  // of the ordered path
    double tuples;         // of the table
    double passing;        // the share of the bitmap's rows that passes the rest of WHERE
};

// What an ordered scan costs with a further condition on an attribute. `share`: the part of the
// scan's entries that meet this condition. `rows`: the number of rows that the scan then returns.
struct KeyedCost {
    double startup;
    double total;
};
KeyedCost cost_with_keys(PlannerInfo* root, const IndexPath* ordered, double share, double rows);

}  // namespace pgwarp
