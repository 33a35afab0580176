#include "kernels/cuda/base/blas.h"

#include "kernels/device.h"

#include <string>

namespace pgwarp::gpu {

void fail(cublasStatus_t status, const char* what) {
    const cudaError_t error = cudaGetLastError();
    if (error != cudaSuccess) fail(error, what);
    throw DeviceFailure(std::string(what) + ": " + cublasGetStatusString(status), false);
}

}  // namespace pgwarp::gpu
