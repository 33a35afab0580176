// Arguments that the SQL functions on graphs share.
#pragma once

#include "kernels/knn_graph.h"
#include "extension/compat.h"
#include "extension/graph/build.h"
#include "extension/table/table_reader.h"

namespace pgwarp {

constexpr int32 most_neighbors = 1000;

// Reports an error where one of these arguments is null.
void refuse_null_arguments(FunctionCallInfo fcinfo, const char* const* names, int count);

char* text_argument(FunctionCallInfo fcinfo, int number);

void check_neighbors(int32 k);
// k from this argument; if it is null, `otherwise` (that of a given graph), at least 1.
uint32 wanted_neighbors(FunctionCallInfo fcinfo, int number, uint32 otherwise);

// Positions of the arguments for NN-Descent. `samples` and `iterations` are null or positive.
struct GraphKnobs {
    int samples;
    int iterations;
    int seed;
};
GraphJob make_graph_job(FunctionCallInfo fcinfo, Metric metric, int32 k, const GraphKnobs& knobs);

enum class GraphMethod : uint8 { automatic, exact, nn_descent, ivfpq };

// What a call of knn_graph or knn_graph_create asks for.
struct GraphCall {
    TableColumns columns;
    GraphMethod method;
    GraphJob job;
    uint32 probes;  // of ivfpq; 0: by its settings
};
// The arguments from this one on are table, key, vector_column, k, method, metric, samples,
// iterations, probes, seed. Reports an error where one of them makes no sense.
GraphCall read_graph_call(FunctionCallInfo fcinfo, int first);
// Reads the table and writes its graph, with progress. `in_order`: sources by key, where memory has
// room for all lists.
void make_graph(GraphCall* call, EdgeWriter* writer, bool in_order);

}  // namespace pgwarp
