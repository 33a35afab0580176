// The metrics of k-NN graphs, by their names in SQL.
#pragma once

#include "kernels/knn_graph.h"
#include "extension/compat.h"

namespace pgwarp {

// Reports an error if there is no metric of this name.
Metric graph_metric_called(const char* name);

// Converts the distance of an Edge into the result of the operator: <->, <#>, <=>, <+>.
float edge_operator_distance(Metric metric, float distance);

// Normalises a row for cosine; other metrics take it as it is. False: a zero vector, which has no
// cosine distance.
bool prepare_row(Metric metric, float* row, uint32 dims);

// The same for a block of rows and their keys. Zero vectors are removed, and the rest compacted.
// Returns how many rows are left.
Size prepare_rows(Metric metric, float* rows, int64* keys, Size count, uint32 dims);

}  // namespace pgwarp
