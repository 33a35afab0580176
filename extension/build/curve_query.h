// One query of the recall curve (curve.h): its lists, and how many of its neighbors a scan finds.
#pragma once

#include <cmath>

#include "kernels/common.h"
#include "extension/index/format.h"

extern "C" {
#include "utils/rel.h"
}

namespace pgwarp {

// The true neighbors of one query: their TIDs, nearest first; 0 ends a shorter list.
inline constexpr uint32 curve_neighbors = 100;
inline constexpr uint32 most_curve_neighbors = 1000;
inline constexpr uint32 curve_queries = 512;
struct CurveQuery {
    uint64 self;              // the row's own TID, not counted among its neighbors; 0: it is no row
    const float* vector;      // in index form
    const uint64* neighbors;  // (room)
    // Their lists, (room); null: unknown, so begin_curve() walks lists to find them.
    const uint32* lists = nullptr;
    uint32 room = curve_neighbors;  // at most most_curve_neighbors
};

// The numbers of probes to measure. Most entries that a query would scan lie in far lists, which
// hardly hold any neighbors. So all queries measure the near steps, and a part of the queries
// measures how much more the far steps find.
struct CurveGrid {
    uint32 steps;
    uint32 near_steps;   // the first of these; all queries measure them
    uint32 far_queries;  // the first queries, which measure all steps
    uint32 probes[RecallCurve::max_steps];
};
inline constexpr uint32 far_queries_of = 8;  // one of this many queries measures all steps

// Thresholds of effort by query (kernels/list_effort.h) are measured on a grid of their own, which
// suits any data. The curve gets the part of it that matters.
inline constexpr int tried_thresholds = 56;
inline double tried_threshold(int i) {
    constexpr double octaves = 0.6;
    return std::exp2(1 + octaves * i);
}

struct CurveCounts {
    double hits[RecallCurve::ks][RecallCurve::max_steps][RecallCurve::factors];
    // Sums of squares of each query's recall.
    double squares[RecallCurve::ks][RecallCurve::max_steps][RecallCurve::factors];
    double wanted[RecallCurve::ks];
    double queries[RecallCurve::ks];
    double scanned[RecallCurve::max_steps];
    double walks;  // queries, whatever k they measure
    // By query:
    double query_hits[RecallCurve::ks][tried_thresholds][RecallCurve::factors];
    double query_lists[RecallCurve::ks][tried_thresholds];
    double query_scanned[RecallCurve::ks][tried_thresholds];
    double cut[RecallCurve::ks][tried_thresholds];  // queries that would have taken more lists
};
// Seconds and work spent, summed over all processes.
struct CurveEffort {
    double ranking;  // of lists; includes making the query's table
    double looking;  // for the entries of neighbors
    double scanning;
    double counting;
    double entries;  // scanned
};
// Margins of candidates (CandidateMargins) are counted in quarters of octaves. The last bin has
// those that are too large to be known.
inline constexpr int margin_bins = 257;
inline constexpr double margin_octaves = 0.25;
inline constexpr double least_margin = 0x1p-32;

struct CurveTally {
    CurveCounts all;  // of all queries: near steps only
    CurveCounts far;  // of the queries that measure all steps
    double margins[RecallCurve::ks][RecallCurve::factors][margin_bins];
    CurveEffort effort;
};
// `number` is the query's index in the whole set; it decides whether the query measures far steps.
void tally_query(Relation index, const MetaPage& meta, const CurveGrid& grid,
                 const CurveQuery& query, uint32 number, CurveTally* tally);
// Writes for each neighbor, nearest first, the rank of its list, (query.room); returns how many
// neighbors there are. Allocates in the current memory context.
uint32 rank_neighbor_lists(Relation index, const MetaPage& meta, const CurveQuery& query,
                           uint32* list_ranks);

}  // namespace pgwarp
