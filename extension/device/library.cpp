#include <algorithm>
#include <cctype>
#include <cstring>

#include <dirent.h>
#include <dlfcn.h>
#include <unistd.h>

#include "extension/device/library.h"
#include "extension/compat.h"

extern "C" {
#include "miscadmin.h"
}

namespace pgwarp {

namespace {

using Path = char[MAXPGPATH];

void library_path(Path& path) {
    snprintf(path, sizeof(path), "%s/pgwarp_cuda.so", pkglib_path);
}

// Entries of a folder whose names are `prefix` and a digit, with no letter behind.
int count_entries(const char* folder, const char* prefix) {
    DIR* opened = opendir(folder);
    if (!opened) return 0;
    const size_t length = strlen(prefix);
    int count = 0;
    while (const dirent* entry = readdir(opened)) {
        const char* rest = entry->d_name + length;
        if (strncmp(entry->d_name, prefix, length) != 0 || !isdigit(static_cast<uint8>(*rest)))
            continue;
        count += rest[strspn(rest, "0123456789abcdef:.")] == '\0';
    }
    closedir(opened);
    return count;
}

}  // namespace

int count_gpus() {
    return std::max(count_entries("/dev", "nvidia"), count_entries("/proc/driver/nvidia/gpus", ""));
}

bool cuda_library_is_there() {
    Path path;
    library_path(path);
    return access(path, F_OK) == 0;
}

Device* open_cuda_device(const DeviceOptions& options, OpenError* error) {
    // Default until the library sets another: what is missing here is missing for every device.
    error->failure = OpenFailure::no_such_device;
    if (!cuda_library_is_there()) {
        strlcpy(error->message, "pgwarp was built without CUDA", sizeof(error->message));
        return nullptr;
    }
    // pgwarp_cuda.so loads several hundred megabytes of other libraries: skip it without a driver.
    if (!dlopen("libcuda.so.1", RTLD_LAZY | RTLD_LOCAL)) {
        strlcpy(error->message, "there is no driver for CUDA devices (libcuda.so.1)",
                sizeof(error->message));
        return nullptr;
    }
    Path path;
    library_path(path);
    // Never closed: the code of device objects lives in the library.
    void* library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    void* open = library ? dlsym(library, open_device_symbol) : nullptr;
    if (!open) {
        strlcpy(error->message, dlerror(), sizeof(error->message));
        return nullptr;
    }
    return reinterpret_cast<OpenDevice*>(open)(&options, error);
}

}  // namespace pgwarp
