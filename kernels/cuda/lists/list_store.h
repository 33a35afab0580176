#pragma once

#include "kernels/cuda/base/context.h"
#include "kernels/list_store.h"

#include <memory>

namespace pgwarp::gpu {

// The context outlives the store.
std::unique_ptr<ListStore> make_list_store(const Context& context, const Quantizer& quantizer,
                                           const AttributeLayout& attributes);

}  // namespace pgwarp::gpu
