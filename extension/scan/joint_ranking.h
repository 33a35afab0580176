// Candidates of several scans, of the partitions of a table, ranked in one order.
#pragma once

#include "extension/index/effort.h"
#include "extension/scan/state.h"

namespace pgwarp {

struct JointWalk;

struct JointPart {
    IndexScanDesc scan;
    ScanState* s;
    JointWalk* walk;     // of joint_search.cpp; null: the index has no lists, its rows are known
    Candidate* items;    // nearest by code first; ranking reorders them
    Candidate* by_code;  // a copy in that order; null: join_candidates() was not called
    Size count;
    Size ranked;  // of these
};

struct JointSearch {
    JointPart* parts;
    int part_count;
    Size k;
    bool beyond;  // the executor reads a row behind the k nearest ones of each part, too
    double rows;  // of all indexes, as they were built
    // For k rows, by the largest index:
    Effort effort;
    Size most;        // candidates that are kept
    ListPlan plan;    // its shift is that of all
    double* numbers;  // memory for distances
    Size number_room;
};

// Room for this many distances, in search->numbers; and the n-th least of these, infinity if there
// are fewer.
double* numbers_for(JointSearch* search, Size count);
double nth(double* numbers, Size count, Size n);

// The part's share of all rows.
double share_of(const JointSearch& search, const JointPart& part);
// Of the k nearest rows, those that fall to a part: at least one.
uint32 rows_by_chance(const JointSearch& search, const JointPart& part);
// Sets what is "for k rows". At least one index has lists.
void choose_limits(JointSearch* search, Size k);

// Rows of all parts that were found.
Size count_rows(const JointSearch& search);
// The distance of the k-th nearest of these; infinity: there are fewer.
double kth_distance(JointSearch* search);

// A candidate of any part.
struct JointCandidate {
    double distance;
    int part;

    friend bool operator<(const JointCandidate& a, const JointCandidate& b) {
        return a.distance < b.distance || (a.distance == b.distance && a.part < b.part);
    }
};
struct JointOrder {
    JointCandidate* items;
    Size count;
    Size worth;  // candidates that are worth ranking, if all have rows
};
// The candidates of all parts in one order, in the current memory context.
JointOrder join_candidates(JointSearch* search);
// Whether the k rows are among the nearest candidates that were searched for: not where many of
// these have no visible row.
bool has_enough(JointSearch* search);
// Ranks these candidates, until the next ones are so far that hardly any can be among the k nearest
// rows; and for `beyond` a few more. Returns the distance of the k-th.
double rank_jointly(JointSearch* search, const JointOrder& order);

}  // namespace pgwarp
