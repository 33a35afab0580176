// The recall of live searches, estimated from those that were audited, and how far effort has to be
// corrected so that it meets the target.
//
// Old audits are forgotten: each audit has a weight, and weights fade with every audit that
// follows. So the estimate follows queries and rows that change.
#pragma once

#include "kernels/common.h"

#include <cstdint>

namespace pgwarp {

// One audited search.
struct AuditResult {
    double recall;  // found of the nearest rows, 0 to 1
    double target;  // that was asked for
    double aimed;   // that the effort was chosen for: the target, corrected
};

// Sums over audits, each with its weight. All zero: no audit. Plain numbers, for shared memory.
struct RecallEstimate {
    double weights;
    double squared_weights;
    double recall;
    double squared_recall;
    double target;
    double aimed;
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

// A correction is added to the logit of the target, and gives the recall that effort is chosen for.
inline constexpr double most_correction = 3;
// Downwards: it holds for every target, and for other numbers of rows, of which some may need more.
inline constexpr double least_correction = -1.5;
inline constexpr double longest_correction_step = 0.5;

double logit(double share);  // of a share clamped to what has one
double corrected_recall(double target, double correction);

// What was believed of the correction before these audits.
struct CorrectionPrior {
    double mean;
    double variance;
};
inline constexpr double prior_variance_unlearned = 0.25;
inline constexpr double prior_variance_learned = 0.1;

// The correction that lets the mean recall meet the target, and a little more. It is between the
// prior and what the audits say, by how much they say.
double wanted_correction(const RecallEstimate& estimate, const CorrectionPrior& prior);

// The next correction: at most a step from the one in force, within its bounds. The same as the one
// in force where the difference may be chance.
double next_correction(const RecallEstimate& estimate, const CorrectionPrior& prior,
                       double in_force);

// Fades audits from before a step of the correction, by its length: effort may answer to a
// correction more or less than it should.
void fade_before_step(RecallEstimate* estimate, double step);

// After how many further audits next_correction() is asked again.
uint32_t audits_to_next_correction(const RecallEstimate& estimate);

}  // namespace pgwarp
