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

bool starts_early() {
    // Devices of one process are few, and seldom differ.
    thread_local int known = -1;
    thread_local bool can = false;
    int device = 0;
    check(cudaGetDevice(&device), "cudaGetDevice");
    if (device != known) {
        int major = 0;
        check(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device),
              "cudaDeviceGetAttribute");
        can = major >= 9;
        known = device;
    }
    return can;
}

void refuse(const char* message) {
    throw DeviceFailure(message, false);
}

}  // namespace pgwarp::gpu
