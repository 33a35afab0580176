// Measures the recall curve at the end of a build. Scans choose their effort by it (index/effort).
#pragma once

#include "kernels/list_plan.h"
#include "extension/curve/query.h"

namespace pgwarp {

// This many queries at the start decide how far to measure.
inline constexpr uint32 curve_trial_queries = 32;

// Measures the curve of a trained index, in one process. Several processes can divide the queries
// between begin_curve() and end_curve() among themselves, by tally_query() and add_tally(). Hits
// and entries are whole numbers, so their sums do not depend on the division.
struct MeasuredCurve {
    RecallCurve curve;
    CodeErrors errors;
    UsualQueries usual;
    UsualShares usual_shares;
};
// About the largest norm of a row, as far as queries and their neighbors tell. 0: not needed.
float largest_norm_of(const MetaPage& meta, const CurveQuery* queries, uint32 count);
MeasuredCurve measure_curve(Relation index, const MetaPage& meta, const CurveQuery* queries,
                            uint32 count);
inline void set_curve(MetaPage* meta, const MeasuredCurve& measured) {
    meta->curve = measured.curve;
    meta->errors = measured.errors;
    meta->usual = measured.usual;
    meta->usual_shares = measured.usual_shares;
    meta->list_rule = list_rule;
}

// Reads only the trial queries. `wide`: the first queries, which measure k = 1,000; all or a few.
CurveGrid begin_curve(const CurveLists& lists, const CurveQuery* queries, uint32 count,
                      uint32 wide);
// How many of the first queries are wide.
uint32 count_wide(const CurveQuery* queries, uint32 count);
void add_tally(const CurveTally& tally, CurveTally* sum);
MeasuredCurve end_curve(const CurveGrid& grid, const CurveTally& tally);

}  // namespace pgwarp
