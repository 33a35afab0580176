#pragma once

#include "kernels/cuda/base/context.h"
#include "kernels/executor.h"

#include <memory>

namespace pgwarp::gpu {

// The context outlives the executor.
std::unique_ptr<Executor> make_executor(const Context& context);

}  // namespace pgwarp::gpu
