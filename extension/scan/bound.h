// A condition that bounds the distance a scan is ordered by, WHERE v <op> q < r: what it lets a
// scan leave out.
//
// A scan knows candidates by their codes, and distances by code differ from exact ones. What it has
// ranked tells by how much. From that comes the distance by code beyond which rows within the bound
// are too few to count, by ivfpq.target_recall: candidates beyond it are not ranked.
//
// Codes err least where rows are dense, and most of the rows within the bound may be there, while
// other conditions of the query drop just these. So rows are looked at by shells, from the bound
// inwards, and the limit is that of the shell which needs most; and within a shell large
// differences weigh more than small ones. What is ranked later may raise the limit: then a scan
// returns to the groups of lists that it left at a lower one.
//
// Of lists, those nearest to the query come first. A group of lists that was larger than all before
// it, and had next to none of the rows within the bound that were found, ends the scan, unless the
// centroid of a list that was not read is within the bound itself.
#pragma once

#include "kernels/common.h"
#include "extension/compat.h"

extern "C" {
#include "nodes/execnodes.h"
}

namespace pgwarp {

// How distances by code differ from exact ones, of some rows.
struct Differences {
    double count;
    double sum;
    double squares;
    // Of those above the mean of the ones before them: the squares of how far above they are, and
    // the squares of these.
    double squares_above;
    double fourths_above;

    void add(double difference);
    void add(const Differences& others);
    // What no more than a share `missing` of them exceeds.
    double greatest(double missing) const;
};

struct DistanceBound {
    bool given;
    bool scaled;      // distances by code are twice the exact ones
    double distance;  // no row within the bound has a greater exact_distance(); -infinity: none has
    double missing;   // the share of rows within the bound that each of the two rules may miss

    // Of rows within the bound: those in the shell next to it are in the last element, and each
    // shell before is twice as wide.
    static constexpr int shells = 16;
    Differences within[shells];
    int widest;  // the binary exponent of the first shell's width

    // Of the rows nearest to the query, where too few are within the bound.
    struct Difference {
        double exact;
        double difference;
    };
    static constexpr int most_nearest = 64;
    static constexpr int least_nearest = 32;
    Difference nearest[most_nearest];  // a heap, the farthest on top
    int nearest_count;

    // Rows within the bound: in all, and in the group of lists under way.
    int64 found;
    int64 group_found;
    uint32 groups;  // that were read to their ends
};

// The bounds of a scan's plan, made ready to be evaluated; NIL: it has none.
List* init_bounds(IndexScanState* scan);

// The least of them as the query is now. `metric`: the scan's.
DistanceBound evaluate_bounds(List* bounds, IndexScanState* scan, Metric metric, double recall);

// Notes a ranked row of the lists. `code`: its distance by code; NaN where that is not known.
void note_ranked(DistanceBound* bound, double code, double exact);

// The greatest distance by code that is worth ranking; infinite as long as little is known.
double code_limit(const DistanceBound& bound);

// Whether the limit has risen since candidates up to `reached` were ranked, by enough to matter.
bool limit_has_risen(const DistanceBound& bound, double reached);

// At the end of a group of lists: whether further lists are worth reading. `nearest_term`: the
// distance, as codes have it, of the nearest centroid among those.
bool worth_going_on(DistanceBound* bound, double nearest_term);

}  // namespace pgwarp
