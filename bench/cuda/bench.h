// Shared by the benchmarks of the CUDA kernels. See main.cpp.
#pragma once

#include "kernels/cuda/base/context.h"
#include "kernels/cuda/base/stream.h"

#include <cuda_profiler_api.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <functional>
#include <string>
#include <vector>

namespace pgwarp::gpu {

// Limits of the hardware, measured in the same run as the kernels.
struct Limits {
    double copy_bandwidth = 0;  // bytes read and written per second, device to device
    double sgemm_rate = 0;      // float32 operations per second
    double sgemm_time = 0;      // seconds, of all products of an exact search
    double tf32_time = 0;       // the same on tensor cores in TF32
};

struct Settings {
    std::string base_file, query_file;  // bvecs; empty: synthetic data
    std::string only;                   // sections, separated by commas; empty: all
    bool profile = false;               // marks one call of each kernel for a profiler
    size_t rows = 1000000;
    size_t queries = 10000;
};

// Rows and queries of bytes, stored as floats. See data.cpp.
struct VectorSet {
    uint32_t dims = 0;
    std::vector<float> base;     // (count)(dims)
    std::vector<float> queries;  // (count)(dims), the first `real_queries` as they were read
    size_t real_queries = 0;
    std::string description;

    size_t base_count() const { return base.size() / dims; }
    size_t query_count() const { return queries.size() / dims; }
};
VectorSet load_vectors(const Context& context, const Settings& settings);

// One line of the table.
void report(const std::string& what, double seconds, const std::string& rate,
            const std::string& share, const std::string& bar);
std::string format(const char* pattern, double value);

// Median seconds of several calls, after some warm-up calls.
template <typename Call>
double time_on_host(Call call, int repeats = 15, int warm_ups = 3) {
    for (int i = 0; i < warm_ups; ++i) call();
    std::vector<double> times;
    for (int i = 0; i < repeats; ++i) {
        const auto begin = std::chrono::steady_clock::now();
        call();
        const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - begin;
        times.push_back(taken.count());
    }
    std::sort(times.begin(), times.end());
    return times[times.size() / 2];
}

// The same for work on a stream, timed by events of the device.
template <typename Call>
double time_on_device(cudaStream_t stream, Call call, int repeats = 15, int warm_ups = 3) {
    Event begin(cudaEventDefault), end(cudaEventDefault);
    for (int i = 0; i < warm_ups; ++i) call();
    std::vector<double> times;
    for (int i = 0; i < repeats; ++i) {
        begin.record(stream);
        call();
        end.record(stream);
        end.synchronize();
        float milliseconds = 0;
        check(cudaEventElapsedTime(&milliseconds, begin, end), "cudaEventElapsedTime");
        times.push_back(milliseconds * 1e-3);
    }
    std::sort(times.begin(), times.end());
    return times[times.size() / 2];
}

// Makes one call between cudaProfilerStart() and cudaProfilerStop().
template <typename Call>
void profile(const Settings& settings, Call call) {
    if (!settings.profile) return;
    check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
    check(cudaProfilerStart(), "cudaProfilerStart");
    call();
    check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
    check(cudaProfilerStop(), "cudaProfilerStop");
}

// Random numbers in [0, 1), another sequence for each seed.
void fill_uniform(float* values, size_t count, uint64_t seed, cudaStream_t stream);

Limits measure_limits(const Context& context, const Settings& settings);
void bench_select(const Context& context, const Settings& settings, const Limits& limits);
void bench_exact(const Context& context, const Settings& settings, const Limits& limits,
                 const VectorSet& vectors);
void bench_training(const Context& context, const Settings& settings, const Limits& limits,
                    const VectorSet& vectors);
void bench_passes(const Context& context, const Settings& settings);
void bench_lsq(const Context& context, const Settings& settings, const VectorSet& vectors);
void bench_lists(const Context& context, const Settings& settings, const Limits& limits,
                 const VectorSet& vectors);
void bench_many_lists(const Context& context, const Settings& settings, const VectorSet& vectors);
void bench_graphs(const Context& context, const VectorSet& vectors);
void bench_large_graph(const Context& context);

}  // namespace pgwarp::gpu
