// The recall curve: measured at the end of a build, read by every scan to choose its effort.
#pragma once

#include "kernels/common.h"
#include "extension/index/format.h"

extern "C" {
#include "utils/rel.h"
}

namespace pgwarp {

// How much a scan does in its first round.
struct Effort {
    uint32 probes;
    uint32 candidates;
};
// What a scan costs in the place where its lists are, in look-ups of this CPU.
struct ScanCosts {
    double probe;    // of one list, beside its entries
    double look_up;  // of one byte of a code
};
inline ScanCosts cpu_costs(const MetaPage& meta) {
    // Sixteen entries or more at once, with four bits.
    constexpr double byte_of_nibbles = 0.2;
    return {0, meta.bits == 4 ? byte_of_nibbles : 1};
}
// For k wanted rows, by the settings and the index's curve.
Effort choose_effort(const MetaPage& meta, uint32 k, const ScanCosts& costs);
inline Effort choose_effort(const MetaPage& meta, uint32 k) {
    return choose_effort(meta, k, cpu_costs(meta));
}

// The true neighbors of one sampled row: their TIDs, nearest first; 0 ends a shorter list.
inline constexpr uint32 curve_neighbors = 100;
inline constexpr uint32 curve_queries = 512;
struct CurveQuery {
    uint64 self;              // the row's own TID: it is nobody's neighbor here
    const float* vector;      // in index form
    const uint64* neighbors;  // (curve_neighbors)
    // Their lists, (curve_neighbors), where somebody knows them; else they are looked for.
    const uint32* lists = nullptr;
};

// Queries that tell how far to measure; of the others nobody asks where their neighbors are.
inline constexpr uint32 curve_trial_queries = 32;

// Measures the curve of a trained index: in one go, or in steps of which the second can be divided
// among processes. What they count is whole numbers, so their sum does not depend on the division.
RecallCurve measure_curve(Relation index, const MetaPage& meta, const CurveQuery* queries,
                          uint32 count);

// Most of the entries that a query would walk lie in lists that hardly have a neighbor more. All
// queries tell the first steps of probes; of the others a part tells how much more they find.
struct CurveGrid {
    uint32 steps;
    uint32 near_steps;  // of them
    uint32 probes[RecallCurve::max_probes];
};
inline constexpr uint32 far_queries_of = 8;  // the first query of so many goes to the end

struct CurveCounts {
    double hits[RecallCurve::ks][RecallCurve::max_probes][RecallCurve::factors];
    double wanted[RecallCurve::ks];
    double scanned[RecallCurve::max_probes];
    double queries;
};
// What it took, of all participants together.
struct CurveEffort {
    double ranking;  // seconds: lists, and the table of the query
    double looking;  // for neighbors
    double scanning;
    double counting;
    double entries;  // scanned
};
struct CurveTally {
    CurveCounts all;  // the near steps
    CurveCounts far;  // all steps, of the queries that go far
    CurveEffort effort;
};
CurveGrid begin_curve(Relation index, const MetaPage& meta, const CurveQuery* queries,
                      uint32 count);
// The query whose turn it is: those that go far take longest, and nobody should begin one last.
inline uint32 query_of_turn(uint32 turn, uint32 count) {
    const uint32 far = (count + far_queries_of - 1) / far_queries_of;
    if (turn < far) return turn * far_queries_of;
    const uint32 near = turn - far;
    return near / (far_queries_of - 1) * far_queries_of + 1 + near % (far_queries_of - 1);
}
// `number` is the query's place among all.
void tally_query(Relation index, const MetaPage& meta, const CurveGrid& grid,
                 const CurveQuery& query, uint32 number, CurveTally* tally);
void add_tally(const CurveTally& tally, CurveTally* sum);
RecallCurve end_curve(const CurveGrid& grid, const CurveTally& tally, uint32 count);

// The recall of (probes step, candidates factor) for k rows, between the measured k's.
double curve_recall(const RecallCurve& curve, uint32 k, uint32 step, uint32 factor);

}  // namespace pgwarp
