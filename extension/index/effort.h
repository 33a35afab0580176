// How much effort a scan makes: chosen from the settings and the index's recall curve.
#pragma once

#include <algorithm>
#include <cmath>

#include "kernels/common.h"
#include "kernels/list_store.h"
#include "extension/index/format.h"

namespace pgwarp {

// How much a scan does in its first round.
struct Effort {
    uint32 probes;  // by query: the mean, as measured
    uint32 candidates;
    // Above 0: each query decides how many lists it takes (kernels/list_effort.h).
    float threshold;
    // The recall that the curve promises of it: what was aimed at, or more where the least effort
    // finds more. 0: nothing was measured.
    float promised = 0;
    // Above 0: a query whose next candidates are this near to its k-th by code, see
    // candidate_limit(), ranks more of them, up to most_ranked_of().
    float margin = 0;
    // With a threshold: lists that a query takes whatever they score. Rows with near duplicates
    // need them.
    uint32 first_lists = 0;
    // Above 0: its radius may be that of a later row (wider_radius() in kernels/list_effort.h).
    uint32 wider_k = 0;
};
// The most candidates that a query ranks by its own decision: several times as many, twice as many
// where they are many. Where rows have near duplicates, the curve has few candidates, as duplicates
// are told from other rows by any code: a query that is near none needs many more. By refinements
// each costs little. Else as many as a device selects fast, or several times that where duplicates
// were noticed (Effort::wider_k): the CPU ranks no more, so that both give the same rows.
inline Size most_ranked_of(Size candidates, bool refines, uint32 wider_k) {
    constexpr Size times = 8;
    constexpr Size many = 1024;
    if (refines) return std::max(2 * candidates, std::min(times * candidates, many));
    const Size fast = wider_k > 0 ? 4 * fast_list_k : fast_list_k;
    return candidates <= fast ? std::min(times * candidates, fast) : 2 * candidates;
}
// Distances by code err by a multiple of the distance, and are squared: so the unit of margins is
// the distance itself.
inline double margin_between(double kth, double last) {
    return kth > 0 ? (last - kth) / std::sqrt(kth) : 0;
}
// How far by code candidates are ranked after the last that is ranked in any case.
inline double candidate_limit(double kth, double last, double margin) {
    // The closer together candidates lie, the more of them errors bring before the k-th row: so
    // such a query goes beyond the margin by what it lacks.
    const double lacking = std::max(margin - margin_between(kth, last), 0.0);
    return kth + (margin + lacking) * std::sqrt(std::max(kth, 0.0));
}

// No limit of a query whose k-th candidate is at least as near as this is greater.
inline double greatest_limit(double kth, double margin) {
    return kth + 2 * margin * std::sqrt(std::max(kth, 0.0));
}

// How many of these distances by code, nearest first, a query for k rows ranks: at least `least`.
template <class DistanceAt>
Size count_worth_ranking(Size count, Size least, Size k, double margin, DistanceAt distance_at) {
    if (!(margin > 0) || count <= least || count < k) return count;
    Size worth = std::max(least, k);
    const double limit = candidate_limit(distance_at(k - 1), distance_at(worth - 1), margin);
    while (worth < count && distance_at(worth) <= limit) ++worth;
    return worth;
}

// Costs of a scan where its lists are, on this CPU or in the service. The unit is one look-up in a
// table by this CPU.
struct ScanCosts {
    double probe;    // per list, without its entries
    double look_up;  // per byte of a code
    // Candidates are ordered by their refinements, and few rows are visited. Else all are.
    bool refines = false;
    double refinement = 1;  // of a refinement, relative to one that this CPU reads
    // How many times as long look-ups take where more than fast_list_k candidates are selected.
    double many_candidates = 1;

    friend bool operator==(const ScanCosts& a, const ScanCosts& b) {
        return a.probe == b.probe && a.look_up == b.look_up && a.refines == b.refines &&
               a.refinement == b.refinement && a.many_candidates == b.many_candidates;
    }
};
// Of a scan of this CPU that visits the rows of all candidates.
inline ScanCosts visiting_costs(const MetaPage& meta) {
    // With four bits, an instruction looks up sixteen entries or more.
    constexpr double byte_of_nibbles = 0.2;
    return {0, meta.bits == 4 ? byte_of_nibbles : 1};
}
// Of one that uses refinements, if the index has them and the session wants it to.
ScanCosts cpu_costs(const MetaPage& meta);
// About how many rows such a scan visits for the k nearest: codes leave some undecided.
inline double refined_visits(double k) {
    return 1.25 * k + 1;
}
// Whether the caller lets each query decide how many lists it takes.
enum class ByQuery { no, yes };
// Chooses the effort for k wanted rows from the settings and the index's curve.
Effort choose_effort(const MetaPage& meta, uint32 k, const ScanCosts& costs,
                     ByQuery by_query = ByQuery::no);
inline Effort choose_effort(const MetaPage& meta, uint32 k, ByQuery by_query = ByQuery::no) {
    return choose_effort(meta, k, cpu_costs(meta), by_query);
}

// Rows that a search of one part of a table has to find, of k that are wanted of the whole, if the
// part has this share of the rows: nearly always as many, where they lie by chance.
inline double rows_of_part(double k, double share) {
    const double mean = k * share;
    return std::min(k, std::ceil(mean + 2 * std::sqrt(mean) + 1));
}

// The recall that scans aim at: the target, corrected by what live searches taught.
double aimed_recall(const MetaPage& meta, double k);
// Which correction of LearnedEffort searches for k rows have.
int learned_group(double k);
// The recall that is expected of an effort for k rows, and half the width of its 90% interval.
// Lists between two measured ones have a recall in between; candidates count as the lower. False:
// nothing was measured.
struct ExpectedRecall {
    double recall;
    double within;
};
bool expected_recall(const MetaPage& meta, uint32 k, const Effort& effort, ExpectedRecall* result);

// The lists in which the k nearest rows lie, but for the share that the target allows to miss. The
// curve was measured for k up to 1,000; more are extrapolated.
double lists_for(const MetaPage& meta, double k);
// The lists that a scan is expected to look into before conditions on attributes are satisfied. k
// is the rank of the farthest row wanted among all rows, passing or not.
double expected_lists(const MetaPage& meta, double k);

// For a scan that checks a filter on its rows, and wants k that pass.
// Rows that it ranks by exact distance, of those that pass, where this share of the rows passes.
double ranked_for_filter(const MetaPage& meta, double k, double share);
// Lists that it looks into where the k-th row that passes has the rank `nearest` among all rows.
double lists_for_filter(const MetaPage& meta, double nearest);

// Whether a curve was measured at all.
bool has_curve(const MetaPage& meta);

}  // namespace pgwarp
