// The graph of a table by its ivfpq index: every vector is a query.
#pragma once

#include "kernels/knn_graph.h"
#include "extension/compat.h"
#include "extension/graph/edge_writer.h"
#include "extension/table/table_reader.h"

namespace pgwarp {

struct IndexGraph {
    TableColumns columns;
    Metric metric;
    uint32 k;
    EdgeWriter* writer;
};

// The table's index for searches by this metric; invalid: it has none.
Oid look_for_graph_index(const TableColumns& columns, Metric metric);
// The same, with an error if it has none, whose hint names a method that needs none.
Oid find_graph_index(const TableColumns& columns, Metric metric, const char* other_method);

// Reports an error if the table has no index that orders by this metric.
void build_graph_by_index(const IndexGraph& graph);

}  // namespace pgwarp
