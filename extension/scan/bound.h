// Range conditions, WHERE v <op> q < r, on the distance that a scan is ordered by. The bound r
// tells a scan which candidates and lists to skip. A condition on a similarity, a number minus the
// distance, is one, too: 1 - (v <=> q) > s, -(v <#> q) > s, (v <#> q) * -1 > s.
//
// Which candidates: a scan has only approximate distances, by code, of its candidates. The rows
// ranked so far give the error of these distances (distance by code minus exact distance). From the
// errors the scan estimates a limit, a distance by code. Rows within the bound whose distance by
// code exceeds the limit are few enough for ivfpq.target_recall. The scan does not rank candidates
// beyond the limit.
//
// Codes err least where rows are dense. Most rows within the bound may lie there, while other
// conditions of the query drop exactly those rows. So errors are kept by shell, from the bound
// inwards, and the limit is the greatest that any shell needs. Within a shell large errors weigh
// more than small ones. Rows ranked later may raise the limit. The scan then returns to the groups
// of lists that it left at a lower limit.
//
// Which lists: a scan reads the lists nearest to the query first, in groups, each larger than all
// groups before it. A group that adds next to none of the rows found within the bound ends the
// scan, unless the centroid of an unread list is itself within the bound.
#pragma once

#include <limits>

#include "kernels/common.h"
#include "extension/compat.h"

extern "C" {
#include "nodes/execnodes.h"
}

namespace pgwarp {

// Moments of the errors of some rows: distance by code minus exact distance.
struct Differences {
    double count;
    double sum;
    double squares;
    // Sums of second and fourth powers of the excess over the running mean, of the errors that
    // exceeded the mean of the errors added before them.
    double squares_above;
    double fourths_above;

    void add(double difference);
    void add(const Differences& others);
    // An estimate of the error that at most a share `missing` of the rows exceeds.
    double greatest(double missing) const;
};

struct DistanceBound {
    bool given;
    bool of_similarity;  // rows whose distance is NaN pass: PostgreSQL sorts NaN above all numbers
    bool scaled;         // distances by code are twice the exact ones
    double distance;     // greatest exact_distance() within the bound; -infinity: no row qualifies
    double missing;      // share of rows within the bound that each rule, limit and lists, may miss

    // Errors of rows within the bound, by shell. The last element is the shell next to the bound;
    // each element before it is a shell twice as wide.
    static constexpr int shells = 16;
    Differences within[shells];
    int widest;  // the binary exponent of the first shell's width

    // Errors of the rows nearest to the query, used if too few rows are within the bound.
    struct Difference {
        double exact;
        double difference;
    };
    static constexpr int most_nearest = 64;
    static constexpr int least_nearest = 32;
    Difference nearest[most_nearest];  // a heap, the farthest row on top
    int nearest_count;

    // Rows found within the bound: in the whole scan, and in the current group of lists.
    int64 found;
    int64 group_found;
    uint32 groups;  // groups read to their ends
};

// Whether a condition bounds the distance from above.
bool bounds_distance(const Expr* condition, const Expr* distance);

// Initializes the expressions that bound the distance in a scan's plan; NIL: none.
List* init_bounds(IndexScanState* scan);

// Evaluates the expressions with the query's current parameters, and returns the least bound.
DistanceBound evaluate_bounds(List* bounds, IndexScanState* scan, Metric metric, double recall);

// Whether a row may pass the conditions. `distance`: its exact_distance(), infinity for NaN.
inline bool is_within(const DistanceBound& bound, double distance) {
    return !bound.given || distance <= bound.distance ||
           (bound.of_similarity && distance == std::numeric_limits<double>::infinity());
}

// Records a ranked row of the lists. `code`: its distance by code; NaN: unknown.
void note_ranked(DistanceBound* bound, double code, double exact);

// The limit: the greatest distance by code that is worth ranking. Infinite until enough rows are
// ranked.
double code_limit(const DistanceBound& bound);

// Whether the limit now exceeds `reached`, the limit that candidates were ranked up to, by enough
// to return to them.
bool limit_has_risen(const DistanceBound& bound, double reached);

// The bound on the scale of distances by code, if codes did not err.
double greatest_term(const DistanceBound& bound);
// Called at the end of a group of lists; returns whether further lists are worth reading.
// `nearest_term`: the distance of the nearest centroid among the unread lists, on the scale of
// distances by code.
bool worth_going_on(DistanceBound* bound, double nearest_term);

}  // namespace pgwarp
