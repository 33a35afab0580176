// What shares of an index's entries and of their rows pass the conditions of a query, as the
// planner estimates them.
#pragma once

#include "kernels/common.h"
#include "extension/compat.h"

extern "C" {
#include "nodes/pathnodes.h"
#include "optimizer/optimizer.h"
}

namespace pgwarp {

// Estimates may be 0, and are divided by.
inline constexpr double least_share = 1e-9;

// Of a comparison, as PostgreSQL prices those of its sorts.
inline double comparison_cost() {
    return 2 * cpu_operator_cost;
}

struct PassingShares {
    double conditions;  // number of those that the scan checks on attributes
    double entries;     // share of the index's entries that passes them
    double rows;        // share of the rows of these entries that passes the rest of WHERE
    // Priced as scans without conditions are, because it competes with one.
    bool beside_plain;
};
// `selectivity`: of the index conditions, and of the predicate of a partial index, among the rows
// of the table.
PassingShares passing_shares(PlannerInfo* root, const IndexPath* path, Selectivity selectivity);

}  // namespace pgwarp
