#pragma once

#include "kernels/cuda/base/context.h"
#include "kernels/cuda/base/upload.h"
#include "kernels/row_pass.h"

#include <memory>

namespace pgwarp::gpu {

// Keeps the model on the device, and uploads each block once, for encoder and search. Context and
// uploader outlive the pass.
std::unique_ptr<RowPass> make_row_pass(const Context& context, Uploader& uploader,
                                       const RowPassInput& input);

}  // namespace pgwarp::gpu
