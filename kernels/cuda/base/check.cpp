#include "kernels/cuda/base/check.h"

#include "kernels/device.h"

#include <string>

namespace pgwarp::gpu {

namespace {

// Errors after which the CUDA context is unusable: every later call fails too.
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
    cudaGetLastError();  // clears the error, else the next check reports it again
    throw DeviceFailure(std::string(what) + ": " + cudaGetErrorString(error), is_sticky(error));
}

int current_capability() {
    // Devices of one process are few, and a thread seldom changes between them.
    thread_local int known = -1, capability = 0;
    int device = 0;
    check(cudaGetDevice(&device), "cudaGetDevice");
    if (device != known) {
        int major = 0, minor = 0;
        check(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device),
              "cudaDeviceGetAttribute");
        check(cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device),
              "cudaDeviceGetAttribute");
        capability = 100 * major + 10 * minor;
        known = device;
    }
    return capability;
}

void refuse(const char* message) {
    throw DeviceFailure(message, false);
}

}  // namespace pgwarp::gpu
