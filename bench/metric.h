// The three metrics, as the ground truth and the recall see them, and as SQL spells them.
#pragma once

#include <span>
#include <string>

#include "kernels/common.h"

namespace pgwarp::bench {

Metric parse_metric(const std::string& name);  // "l2", "ip" or "cosine"
const char* metric_name(Metric metric);
const char* metric_operator(Metric metric);  // as in ORDER BY v <-> $1
// As in CREATE INDEX ... (v vector_l2_ops).
std::string metric_operator_class(Metric metric, const std::string& type);

// Summed in float64, so that what we call a tie does not depend on the order of summation.
// Smaller is nearer. L2 is squared, inner product negative; a zero vector has cosine distance 1.
double distance(Metric metric, std::span<const float> left, std::span<const float> right);

}  // namespace pgwarp::bench
