// What the functions on graphs share: their arguments.
#pragma once

#include "kernels/knn_graph.h"
#include "extension/compat.h"
#include "extension/graph/build.h"

namespace pgwarp {

constexpr int32 most_neighbors = 1000;

// Reports an error where one of these arguments is null.
void refuse_null_arguments(FunctionCallInfo fcinfo, const char* const* names, int count);

char* text_argument(FunctionCallInfo fcinfo, int number);

void check_neighbors(int32 k);
// The argument of this number, or what a graph has where it is null.
uint32 wanted_neighbors(FunctionCallInfo fcinfo, int number, uint32 otherwise);

// A job with the descent's knobs, each null or a positive number: `samples`, `iterations`.
struct GraphKnobs {
    int samples;  // numbers of arguments
    int iterations;
    int seed;
};
GraphJob make_graph_job(FunctionCallInfo fcinfo, GraphMetric metric, int32 k,
                        const GraphKnobs& knobs);

}  // namespace pgwarp
