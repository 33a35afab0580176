#pragma once

#include "kernels/cuda/base/context.h"
#include "kernels/knn_graph.h"

#include <memory>

namespace pgwarp::gpu {

// The context outlives the builder.
std::unique_ptr<GraphBuilder> make_graph_builder(const Context& context);

}  // namespace pgwarp::gpu
