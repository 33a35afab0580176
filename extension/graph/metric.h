// The metrics of k-NN graphs, by their names in SQL.
#pragma once

#include "kernels/knn_graph.h"
#include "extension/compat.h"

namespace pgwarp {

// Reports an error where there is none of this name.
GraphMetric graph_metric_called(const char* name);

// A list's distance as the operator gives it: <->, <#>, <=>, <+>.
float shown_distance(GraphMetric metric, float distance);

// Makes a row ready for the metric: normalises it for cosine. False where it has no direction, so
// that no distance from it is defined.
bool prepare_row(GraphMetric metric, float* row, uint32 dims);

// The same for rows as they come, with their keys: those that have none leave no gap. Returns how
// many are left.
Size prepare_rows(GraphMetric metric, float* rows, int64* keys, Size count, uint32 dims);

}  // namespace pgwarp
