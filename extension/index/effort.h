// How much effort a search for k rows makes, by what the build measured (the recall curve).
//
// Two things lose a row: its list is not taken, or its code puts it behind others. The target
// allows to miss a share; three tenths of it go to codes, the rest to lists.
// - Lists: the smallest threshold whose measured recall is surely high enough
//   (kernels/list_plan.h).
// - Candidates: they are ranked, nearest by code first. Ranking ends where the errors of codes say
//   that of the k nearest rows found so far, no more than that part would have a code farther away.
//   A device that has refinements ranks by these all that it keeps.
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/common.h"
#include "kernels/list_store.h"
#include "extension/index/format.h"

namespace pgwarp {

struct Effort {
    uint32 probes;                // lists; with a threshold the mean, as measured
    uint32 candidates;            // that are ranked: the mean, as measured
    float threshold;              // 0: every query takes `probes` lists
    OutsideQueries outside = {};  // for inner products as shares of the shift
    // Not by errors: `candidates` are ranked.
    bool by_error = false;
    CodeErrors errors = {};
    // The share of the wanted rows that codes may miss.
    float missed = 0;
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
// Duplicates have a radius of 0, which has no logarithm and divides nothing.
inline constexpr float least_radius = 1e-30f;
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

// Interpolates between the figures of the two whole places around this one; outside, takes the
// first or the last. A damaged page may make the place NaN.
template <class Figure>
double between_places(double place, int count, Figure figure) {
    const double inside = place > 0 ? std::min(place, count - 1.0) : 0;
    const auto below = static_cast<int>(inside);
    const double here = figure(below);
    return here + (figure(std::min(below + 1, count - 1)) - here) * (inside - below);
}

// --- candidates. Distances by code are squared, and have the shift; so has `kth` here.

// The greatest distance by code that one of the k nearest rows has, but for those that codes may
// miss.
class CodeReach {
  public:
    // `kth`: the distance of the k-th nearest row found so far, or of the k-th nearest code. Errors
    // are taken to be those of neighbors at that distance.
    CodeReach(const Effort& effort, double kth, float shift) : missed_(effort.missed), kth_(kth) {
        const CodeErrors& errors = effort.errors;
        const double radius = kth / distance_unit(shift);
        const double octave =
            radius > 0 ? std::log2(errors.farthest / radius) : CodeErrors::octaves;
        const double times = growth(radius / errors.farthest);
        for (int i = 0; i < CodeErrors::shares; ++i) {
            const double error = between_places(octave, CodeErrors::octaves, [&](int place) {
                return double{errors.beyond[place][i]};
            });
            errors_[i] = error > 0 ? times * error : error;
        }
        error_ = between_places(CodeErrors::place_of(missed_), CodeErrors::shares,
                                [this](int place) { return errors_[place]; });
    }
    // The least reach that is expected to miss no more of the k wanted rows found so far than codes
    // may. A row that is nearer than the k-th has more room to err.
    template <class DistanceAt>
    double by_rows(Size k, DistanceAt distance_at) const {
        const double allowed = missed_ * static_cast<double>(k);
        const auto misses_more = [&](double reach) {
            double missed = 0;
            for (Size i = 0; i < k && missed <= allowed; ++i)
                missed += share_beyond((reach - distance_at(i)) / std::sqrt(reach));
            return missed > allowed;
        };
        // Here the k-th row is missed no more often than codes may miss rows, nearer ones less.
        double far = reach(error_);
        double near = std::min(kth_, far);
        for (int step = 0; step < 10 && near < far; ++step) {
            const double middle = (near + far) / 2;
            (middle > 0 && !misses_more(middle) ? far : near) = middle;
        }
        return far;
    }
    // While lists are walked: candidates beyond this are dropped. A query that would rank them has
    // to walk again, so this is far.
    double kept() const {
        constexpr double times = 2;
        return std::max(kth_, reach(times * error_));
    }

  private:
    // By how much errors are greater at this many times the distance of neighbors.
    static double growth(double times) {
        constexpr double most = 2;
        return times > 1 ? std::min(times, most) : 1;
    }
    // The distance by code C for which (C - kth) / sqrt(C) is this error.
    double reach(double error) const {
        const double root = (error + std::sqrt(error * error + 4 * std::max(kth_, 0.0))) / 2;
        return root > 0 ? root * root : 0;
    }

    // The share of rows whose code is farther than their distance by more than this.
    double share_beyond(double error) const {
        if (!(error > errors_[0])) return 1;
        int i = 0;
        while (i + 1 < CodeErrors::shares && errors_[i + 1] < error) ++i;
        const double part =
            i + 1 < CodeErrors::shares ? (error - errors_[i]) / (errors_[i + 1] - errors_[i]) : 1;
        return (1 - part / 2) * CodeErrors::share(i);
    }

    double missed_;
    double kth_;
    double errors_[CodeErrors::shares];
    double error_;  // that no more than the missed rows exceed
};
// Candidates that a search keeps of its lists: more than most queries rank, as a query that ranks
// them all has to search again.
inline Size kept_candidates(const Effort& effort) {
    constexpr Size times = 4;
    return effort.by_error ? times * effort.candidates : effort.candidates;
}

// The distance by code, without the shift, up to which candidates are ranked, by the exact
// distances of the k nearest wanted rows found so far, in any order, and of the last of them;
// infinity: rows are lacking. The others as for CodeReach.
template <class DistanceAt>
double ranking_reach(const Effort& effort, Metric metric, Size k, double kth,
                     DistanceAt distance_at, float shift) {
    if (!effort.by_error) return -std::numeric_limits<double>::infinity();
    if (std::isinf(kth)) return kth;
    const auto by_code = [&](double exact) {
        return normalizes(metric) ? 2 * exact : exact + double{shift};
    };
    const CodeReach codes(effort, by_code(kth), shift);
    return codes.by_rows(k, [&](Size i) { return by_code(distance_at(i)); }) - double{shift};
}
// Whether candidates beyond those that were kept, which are this near at best, may be within reach.
// Where rows are lacking, others look for them.
inline bool reaches_beyond(double reach, double kept_until) {
    return reach >= kept_until && !std::isinf(reach);
}
// Candidates are ranked in portions, nearest by code first: k of them, then those within reach, at
// most as many again. The end of the next portion; `ranked`: there is none.
template <class DistanceAt>
Size next_portion(Size ranked, Size count, Size k, double reach, DistanceAt distance_at) {
    const Size most = std::min(count, std::max(2 * ranked, k));
    Size end = ranked;
    while (end < most && !(distance_at(end) > reach)) ++end;
    return end;
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

// The candidates that such a search ranks, if the wanted rows are spread evenly over this many
// nearest ones: more than these, as codes err.
double expected_candidates(const MetaPage& meta, double wanted, double nearest,
                           const Effort& effort);

// Whether a curve was measured at all.
bool has_curve(const MetaPage& meta);

}  // namespace pgwarp
