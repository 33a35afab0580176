// Loading pgwarp_cuda.so, only where a GPU is asked for.
#pragma once

#include <cstddef>

#include "kernels/device.h"

namespace pgwarp {

bool cuda_library_is_there();

// GPUs that the driver of this machine shows in its file systems; without calling the driver, so
// that the postmaster can. Some of them may not be for this process.
int count_gpus();

// Returns a device, which the caller deletes, or null with the reason in `error`. Throws nothing
// and reports nothing. The driver's threads start in here and inherit the signal mask: the caller
// has blocked all signals, or not yet unblocked them.
Device* open_cuda_device(const DeviceOptions& options, OpenError* error);

}  // namespace pgwarp
