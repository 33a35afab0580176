// How much effort a search for k rows makes, by what the build measured (the recall curve).
//
// Two things lose a row: its list is not taken, or its code puts it behind others. The target
// allows to miss a share; a tenth of it goes to codes, the rest to lists.
// - Lists: the smallest threshold whose measured recall is surely high enough
//   (kernels/list_plan.h).
// - Candidates: one is ranked while its distance by code, less the error that codes have in all but
//   that tenth of it, is below the exact distance of the k-th row found so far.
// Every executor makes the same effort, refinements or not.
#pragma once

#include <algorithm>
#include <cmath>

#include "kernels/common.h"
#include "kernels/list_store.h"
#include "extension/index/format.h"

namespace pgwarp {

struct Effort {
    uint32 probes;                // lists; with a threshold the mean, as measured
    uint32 candidates;            // that are ranked: the mean, as measured
    float threshold;              // 0: every query takes `probes` lists
    OutsideQueries outside = {};  // for inner products as shares of the shift
    // Errors of codes (CodeErrors) with that confidence, and the median. Not by errors:
    // `candidates` are ranked.
    bool by_error = false;
    float error = 0;
    float usual_error = 0;
};

// Chooses the effort for k wanted rows from the settings and the index's curve. `with_conditions`:
// the search checks conditions on attributes; live searches teach these and others apart.
Effort choose_effort(const MetaPage& meta, uint32 k, bool with_conditions);

// The least number of lists with which all queries together reach the target, if each takes as
// many: where none decides by itself.
uint32 lists_for_all(const MetaPage& meta, double k, bool with_conditions);

// What is added to distances by code (kernels/list_plan.h), for a query in any form.
inline float code_shift(const MetaPage& meta, const float* query) {
    if (has_norms(meta.metric)) return 0;
    double squares = 0;
    for (uint32 d = 0; d < meta.dims; ++d) squares += double{query[d]} * query[d];
    return static_cast<float>(meta.largest_norm * std::sqrt(squares));
}

// What distances of UsualQueries are shares of.
inline float distance_unit(float shift) {
    return shift > 0 ? shift : 1;
}
// The distance of the nearest list behind which a query is far from all rows.
inline float far_nearest(float usual) {
    constexpr float times = 1.5;
    return times * times * usual;
}
// What a search with this effort wants of lists, where the k-th candidate defines the radius.
inline ListPlan list_plan(const Effort& effort, Size k, float shift) {
    ListPlan plan;
    plan.threshold = effort.threshold;
    plan.k = static_cast<uint32>(k);
    plan.shift = shift;
    plan.outside = effort.outside;
    plan.outside.nearest *= distance_unit(shift);
    plan.outside.radius *= distance_unit(shift);
    return plan;
}
// Raises or lowers thresholds.
inline void scale_thresholds(Effort* effort, double times) {
    effort->threshold *= static_cast<float>(times);
    effort->outside.threshold *= static_cast<float>(times);
}

// --- candidates. Distances by code are squared, or shifted, and so is `kth` here.

// The greatest distance by code that a row at distance `kth` has, but for the error's confidence.
inline double code_reach(double kth, double error) {
    const double root = (error + std::sqrt(error * error + 4 * std::max(kth, 0.0))) / 2;
    return root > 0 ? root * root : 0;
}
// The same before any row was visited, by the k-th nearest code. Its row may be farther than such
// codes usually tell: by half of what an error may be more than the usual one.
inline double code_reach(double kth_code, const Effort& effort) {
    const double beyond = (effort.error - effort.usual_error) / 2 - effort.usual_error;
    const double kth = kth_code + beyond * std::sqrt(std::max(kth_code, 0.0));
    return std::max(kth_code, code_reach(kth, effort.error));
}
// No reach of a query whose k-th candidate is at least as near as this is greater.
inline double greatest_reach(double kth_code, const Effort& effort) {
    const double beyond = effort.error - 2 * effort.usual_error;
    const double kth = kth_code + beyond * std::sqrt(std::max(kth_code, 0.0));
    return code_reach(kth, effort.error);
}
// Candidates that a search keeps of its lists: more than most queries rank, as a query that ranks
// them all has to search again.
inline Size kept_candidates(const Effort& effort) {
    constexpr Size times = 4;
    return effort.by_error ? times * effort.candidates : effort.candidates;
}
// How many of these distances by code, nearest first, a query for k rows ranks.
template <class DistanceAt>
Size count_worth_ranking(Size count, Size k, const Effort& effort, DistanceAt distance_at) {
    if (!effort.by_error) return std::min<Size>(count, std::max<Size>(effort.candidates, k));
    if (count < k) return count;
    const double reach = code_reach(distance_at(k - 1), effort);
    Size worth = k;
    while (worth < count && distance_at(worth) <= reach) ++worth;
    return worth;
}

// Of the nearest rows, those at the end are missed most often. Rows that conditions leave may all
// be there, so what counts is not the last one's rank: among this many of the nearest, the wanted
// rows would be spread evenly.
// `passing`: distances of wanted candidates by code, `visited`: of all; sorted.
inline double even_spread(const double* passing, Size count, const double* visited,
                          Size visited_count) {
    double ranks = 0;
    Size rank = 0;
    for (Size i = 0; i < count; ++i) {
        while (rank < visited_count && visited[rank] <= passing[i]) ++rank;
        ranks += static_cast<double>(rank);
    }
    return count > 0 ? 2 * ranks / static_cast<double>(count) : 0;
}
// The spread that rows may have where this many were searched for: codes err.
inline double tolerated_spread(double rows) {
    return rows + 2 * std::sqrt(rows) + 2;
}
// For how many rows to search next, where the spread is greater: lists that were not taken have
// nearer ones.
inline double rows_to_reach(double spread) {
    return 1.25 * spread;
}

// Rows that a search of one part of a table has to find, of k that are wanted of the whole, if the
// part has this share of the rows: nearly always as many, where they lie by chance.
inline double rows_of_part(double k, double share) {
    const double mean = k * share;
    return std::min(k, std::ceil(mean + 2 * std::sqrt(mean) + 1));
}

// The recall that scans aim at: the target, or more where live searches found less.
double aimed_recall(const MetaPage& meta, double k, bool with_conditions);
// Which correction of a LearnedEffort searches for k rows have.
int learned_group(double k);
// The recall that is expected of an effort for k rows, and half the width of its 90% interval.
// False: nothing was measured.
struct ExpectedRecall {
    double recall;
    double within;
};
bool expected_recall(const MetaPage& meta, uint32 k, const Effort& effort, ExpectedRecall* result);

// The lists that a search for k rows takes, of entries of which this share passes its conditions,
// if these do not depend on the vector. The curve was measured for k up to 1,000; more are
// extrapolated.
double expected_lists(const MetaPage& meta, double k, double share, bool with_conditions);

// Whether a curve was measured at all.
bool has_curve(const MetaPage& meta);

}  // namespace pgwarp
