// Real vectors for tests: the images of Debian's package dataset-fashion-mnist.
#pragma once

#include "kernels/common.h"

#include <cstdio>
#include <string>
#include <vector>

namespace pgwarp {

inline constexpr uint32_t picture_dims = 784;

// The first images of a file, "train" or "t10k"; none if the package is not installed.
inline std::vector<float> pictures(const std::string& name, size_t count) {
    const std::string path = "/usr/share/datasets/fashion-mnist/" + name + "-images-idx3-ubyte.gz";
    FILE* pipe = popen(("gzip -dc " + path + " 2>/dev/null").c_str(), "r");
    if (!pipe) return {};
    constexpr size_t header = 16;
    std::vector<uint8_t> bytes(header + count * picture_dims);
    const size_t read = std::fread(bytes.data(), 1, bytes.size(), pipe);
    pclose(pipe);
    if (read < bytes.size()) return {};
    return {bytes.begin() + header, bytes.end()};
}

}  // namespace pgwarp
