// The recall of live searches, estimated from those that were audited, and how far effort has to be
// raised so that it meets the target.
//
// Old audits are forgotten: each audit has a weight, and weights fade with every audit that
// follows. So the estimate follows queries and rows that change.
#pragma once

#include "kernels/common.h"

#include <cstdint>

namespace pgwarp {

// One audited search.
struct AuditResult {
    double recall;      // found of the nearest rows, 0 to 1
    double target;      // that was asked for
    double correction;  // that was in force
};

// Users remember searches that found less than this.
inline constexpr double poor_recall = 0.8;

// Sums over audits, each with its weight. All zero: no audit. Plain numbers, for shared memory.
struct RecallEstimate {
    double weights;
    double squared_weights;
    double recall;
    double squared_recall;
    double poor;  // searches with a recall below poor_recall
    double target;
    double correction;
};

void add_audit(RecallEstimate* estimate, const AuditResult& result);
RecallEstimate together(const RecallEstimate& a, const RecallEstimate& b);

// How many audits of equal weight would tell as much.
double effective_audits(const RecallEstimate& estimate);

// The mean recall and its 95% interval (Wilson's, for as many neighbors as are found or missed
// independently of each other). There is at least one audit.
struct RecallInterval {
    double recall;
    double low;
    double high;
};
RecallInterval recall_interval(const RecallEstimate& estimate);
double mean_target(const RecallEstimate& estimate);
// Of searches with a recall below poor_recall.
double poor_share(const RecallEstimate& estimate);

// A correction is added to the logit of the target, and gives the recall that effort is chosen for.
// It is 0 or more: effort is never below what the curve has measured.
inline constexpr double most_correction = 3;
inline constexpr double longest_correction_step = 0.5;

double logit(double share);  // of a share clamped to what has one
double corrected_recall(double target, double correction);

// The next correction. Where the whole interval is below the target, it rises to what lets the mean
// meet the target; where even the low end of the interval would meet the target with less, it falls
// to that. By a step at most, and by none that is hardly worth it.
double next_correction(const RecallEstimate& estimate, double in_force);

// Fades audits from before a step of the correction, by its length: effort may answer to a
// correction more or less than it should.
void fade_before_step(RecallEstimate* estimate, double step);

// After how many further audits next_correction() is asked again.
uint32_t audits_to_next_correction(const RecallEstimate& estimate);

}  // namespace pgwarp
