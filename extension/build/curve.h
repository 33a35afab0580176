// Measures the recall curve at the end of a build. Scans choose their effort by it (index/effort).
#pragma once

#include "extension/build/curve_query.h"

namespace pgwarp {

// This many queries at the start decide how far to measure. Only these use CurveQuery::lists.
inline constexpr uint32 curve_trial_queries = 32;

// Measures the curve of a trained index, in one process. Several processes can divide the queries
// between begin_curve() and end_curve() among themselves, by tally_query() and add_tally(). Hits
// and entries are whole numbers, so their sums do not depend on the division.
RecallCurve measure_curve(Relation index, const MetaPage& meta, const CurveQuery* queries,
                          uint32 count);

CurveGrid begin_curve(Relation index, const MetaPage& meta, const CurveQuery* queries,
                      uint32 count);
// Queue position to query: long ones (all steps) first, so that none becomes a straggler.
inline uint32 query_of_turn(uint32 turn, uint32 count) {
    const uint32 far = (count + far_queries_of - 1) / far_queries_of;
    if (turn < far) return turn * far_queries_of;
    const uint32 near = turn - far;
    return near / (far_queries_of - 1) * far_queries_of + 1 + near % (far_queries_of - 1);
}
void add_tally(const CurveTally& tally, CurveTally* sum);
RecallCurve end_curve(const CurveGrid& grid, const CurveTally& tally, Metric metric);

}  // namespace pgwarp
