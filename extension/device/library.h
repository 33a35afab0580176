// pgwarp_cuda.so, which is opened only where a GPU is asked for.
#pragma once

#include <cstddef>

#include "kernels/device.h"

namespace pgwarp {

bool cuda_library_is_there();

// A device, to be deleted by the caller, or null with the reason in `error`. Throws nothing,
// reports nothing. Threads of the driver start in here: signals are blocked by whoever calls it, or
// not yet unblocked.
Device* open_cuda_device(const DeviceOptions& options, OpenError* error);

}  // namespace pgwarp
