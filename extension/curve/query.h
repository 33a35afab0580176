// One query of the recall curve (curve.h): its lists, and how many of its neighbors a scan finds.
#pragma once

#include <cmath>

#include "kernels/executor.h"
#include "extension/index/format.h"

extern "C" {
#include "utils/rel.h"
}

namespace pgwarp {

// The true neighbors of one query: their TIDs and distances, nearest first; TID 0 ends a shorter
// list. Distances are those of index forms, as by code.
inline constexpr uint32 curve_neighbors = 100;
inline constexpr uint32 most_curve_neighbors = 1000;
inline constexpr uint32 curve_queries = 2048;
struct CurveQuery {
    uint64 self;          // the row's own TID, not counted among its neighbors; 0: it is no row
    const float* vector;  // in index form
    const Neighbor* neighbors;      // (room)
    uint32 room = curve_neighbors;  // at most most_curve_neighbors
};

// What queries are measured with.
class NeighborPlaces;
struct CurveLists {
    Relation index;
    const MetaPage& meta;
    const NeighborPlaces& places;  // of all queries
};

// The numbers of probes to measure, and how: looking up the codes of all entries would take most of
// the time. So most queries look up codes in their first lists only. Of farther lists they take the
// neighbors, which are nearly all that is near there.
struct CurveGrid {
    uint32 steps;
    uint32 probes[RecallCurve::max_steps];
    bool all_codes;        // of all lists are looked up, as that is little work
    uint32 whole_queries;  // the first queries may look up codes of all lists
    float nearest;         // distance of the nearest list, as UsualQueries has it
};

// Thresholds of effort by query (kernels/list_plan.h) are measured on a grid of their own, which
// suits any data. The curve gets the part of it that matters.
inline constexpr int tried_thresholds = 56;
inline double tried_threshold(int i) {
    constexpr double octaves = 0.6;
    return std::exp2(1 + octaves * i);
}

// For how many of the k of a curve rows are measured without their own list, the first ones.
inline constexpr int outside_ks = 3;

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
    double placing;  // of neighbors
    double scanning;
    double counting;
    double entries;  // scanned
};
// Errors of codes (CodeErrors) are counted in eighths of octaves: negative ones from the greatest
// to the least, then those around 0, then positive ones.
inline constexpr int error_bins_of_sign = 512;
inline constexpr int error_bins = 2 * error_bins_of_sign + 1;
inline constexpr double error_octaves = 0.125;
inline constexpr double least_error = 0x1p-32;

// Errors are counted by the neighbor's squared distance, in octaves: from a 45th of the usual
// distance of the nearest list to four times. What lies outside counts in the first or the last.
inline constexpr int distance_octaves = 16;
inline constexpr int usual_octave = 11;

// Rows that do not see their own list, which is the nearest: what lists they need for k rows.
struct OutsideCounts {
    double hits[tried_thresholds];
    double cut[tried_thresholds];
    double queries;
    double skipped;  // queries of whose farther lists too little is known
};

struct CurveTally {
    CurveCounts all;
    double errors[distance_octaves][error_bins];
    // What rows are like as queries (UsualQueries), counted as errors are.
    double radius[RecallCurve::ks][error_bins];
    double share_of_radius[RecallCurve::ks][error_bins];
    OutsideCounts whole_outside[outside_ks];  // the first queries, of which none is skipped
    OutsideCounts outside[outside_ks];        // the others
    CurveEffort effort;
};
// `number` is the query's index in the whole set; it decides whether the query is a whole one.
void tally_query(const CurveLists& lists, const CurveGrid& grid, const CurveQuery& query,
                 uint32 number, CurveTally* tally);
// The distance of the nearest list, as UsualQueries has it. Allocates in the current memory
// context.
float nearest_list(const CurveLists& lists, const CurveQuery& query);
// Writes for each neighbor, nearest first, the rank of its list, (query.room); returns how many
// neighbors there are. Allocates in the current memory context.
uint32 rank_neighbor_lists(const CurveLists& lists, const CurveQuery& query, uint32* list_ranks);

}  // namespace pgwarp
