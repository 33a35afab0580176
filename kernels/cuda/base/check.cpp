#include "kernels/cuda/base/check.h"

#include <string>

namespace pgwarp::gpu {

namespace {

// Errors after which the context is gone, whatever is called next.
bool is_sticky(cudaError_t error) {
    switch (error) {
        case cudaErrorIllegalAddress:
        case cudaErrorLaunchTimeout:
        case cudaErrorAssert:
        case cudaErrorHardwareStackError:
        case cudaErrorIllegalInstruction:
        case cudaErrorMisalignedAddress:
        case cudaErrorInvalidAddressSpace:
        case cudaErrorInvalidPc:
        case cudaErrorLaunchFailure:
        case cudaErrorECCUncorrectable:
        case cudaErrorNvlinkUncorrectable:
        case cudaErrorDevicesUnavailable:
        case cudaErrorSystemDriverMismatch:
        case cudaErrorNoDevice:
        case cudaErrorInsufficientDriver:
            return true;
        default:
            return false;
    }
}

}  // namespace

void fail(cudaError_t error, const char* what) {
    cudaGetLastError();  // an error that is not sticky must not surface again in the next call
    throw DeviceFailure(std::string(what) + ": " + cudaGetErrorString(error), is_sticky(error));
}

void fail(cublasStatus_t status, const char* what) {
    const cudaError_t error = cudaGetLastError();
    if (error != cudaSuccess) fail(error, what);
    throw DeviceFailure(std::string(what) + ": " + cublasGetStatusString(status), false);
}

}  // namespace pgwarp::gpu
