// Sums, sizes and squared errors of clusters, on the device.
#pragma once

#include "kernels/cuda/base/stream.h"
#include "kernels/cuda/train/sums.h"

#include <numeric>
#include <vector>

namespace pgwarp::gpu {

// The sum of what add_rows(), add_codes() or add_squares() have added. Waits for the stream.
inline double sum_of_errors(const Buffer<double>& errors, cudaStream_t stream) {
    std::vector<double> host(errors.size());
    copy_async(host.data(), static_cast<const double*>(errors.data()), host.size(), stream);
    check(cudaStreamSynchronize(stream), "cluster sums");
    return std::accumulate(host.begin(), host.end(), 0.0);
}

struct ClusterSums {
    Buffer<unsigned long long> sums;
    Buffer<uint32_t> counts;
    Buffer<double> errors;

    ClusterSums(DeviceMemory& memory, size_t sum_count, size_t cluster_count, cudaStream_t stream)
        : sums(memory, sum_count), counts(memory, cluster_count), errors(memory, error_blocks) {
        clear_async(sums.data(), sums.size(), stream);
        clear_async(counts.data(), counts.size(), stream);
        clear_async(errors.data(), errors.size(), stream);
    }
    // sizes() and error() wait for the stream.
    std::vector<size_t> sizes(cudaStream_t stream) const {
        std::vector<uint32_t> host(counts.size());
        copy_async(host.data(), static_cast<const uint32_t*>(counts.data()), host.size(), stream);
        check(cudaStreamSynchronize(stream), "cluster sums");
        return {host.begin(), host.end()};
    }
    double error(cudaStream_t stream) const { return sum_of_errors(errors, stream); }
};

}  // namespace pgwarp::gpu
