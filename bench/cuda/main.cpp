// Benchmarks of the CUDA kernels: for each, its time, its throughput, and its fraction of a limit
// measured in the same run. The bars are the targets for the kernels on an H200.
//
//   cuda_bench [--base FILE.bvecs --queries FILE.bvecs] [--only
//   limits,select,exact,train,lists,graphs,passes,lsq,large,many]
//              [--rows N] [--batch N] [--profile]
//
// Skipped unless named: lsq, which takes a minute; large, a k-NN graph of 10 million rows; many,
// 16,384 lists of 100 million entries.

#include "bench/cuda/bench.h"
#include "kernels/device.h"

#include <cstring>

namespace pgwarp::gpu {

void report(const std::string& what, double seconds, const std::string& rate,
            const std::string& share, const std::string& bar) {
    char time[32];
    if (seconds < 1e-3)
        std::snprintf(time, sizeof time, "%.1f us", seconds * 1e6);
    else
        std::snprintf(time, sizeof time, "%.3f ms", seconds * 1e3);
    std::printf("| %-58s | %11s | %-22s | %-24s | %-26s |\n", what.c_str(), time, rate.c_str(),
                share.c_str(), bar.c_str());
    std::fflush(stdout);
}

std::string format(const char* pattern, double value) {
    char text[64];
    std::snprintf(text, sizeof text, pattern, value);
    return text;
}

namespace {

bool wanted(const Settings& settings, const char* section) {
    return settings.only.empty() ||
           ("," + settings.only + ",").find(std::string(",") + section + ",") != std::string::npos;
}

Settings read_settings(int count, char** words) {
    Settings settings;
    const auto next = [&](int& i) {
        if (i + 1 >= count) throw std::runtime_error(std::string(words[i]) + " wants a value");
        return std::string(words[++i]);
    };
    for (int i = 1; i < count; ++i) {
        const std::string word = words[i];
        if (word == "--base")
            settings.base_file = next(i);
        else if (word == "--queries")
            settings.query_file = next(i);
        else if (word == "--only")
            settings.only = next(i);
        else if (word == "--rows")
            settings.rows = std::stoul(next(i));
        else if (word == "--batch")
            settings.queries = std::stoul(next(i));
        else if (word == "--profile")
            settings.profile = true;
        else
            throw std::runtime_error("unknown option " + word);
    }
    return settings;
}

int run(int count, char** words) {
    const Settings settings = read_settings(count, words);
    const Context context{DeviceOptions()};
    std::printf("%s, %u multiprocessors\n\n", context.name, context.processors);
    std::printf("| %-58s | %11s | %-22s | %-24s | %-26s |\n", "what", "time", "rate",
                "share of the limit", "bar");
    std::printf("| --- | --- | --- | --- | --- |\n");
    const Limits limits = measure_limits(context, settings);
    if (wanted(settings, "select")) bench_select(context, settings, limits);
    if (wanted(settings, "passes")) bench_passes(context, settings);
    const bool lsq = !settings.only.empty() && wanted(settings, "lsq");
    const bool many = !settings.only.empty() && wanted(settings, "many");
    if (!settings.only.empty() && wanted(settings, "large")) bench_large_graph(context);
    if (wanted(settings, "exact") || wanted(settings, "train") || wanted(settings, "lists") ||
        wanted(settings, "graphs") || lsq || many) {
        const VectorSet vectors = load_vectors(context, settings);
        std::printf("| data: %s |||||\n", vectors.description.c_str());
        if (wanted(settings, "exact")) bench_exact(context, settings, limits, vectors);
        if (wanted(settings, "train")) bench_training(context, settings, limits, vectors);
        if (lsq) bench_lsq(context, settings, vectors);
        if (wanted(settings, "lists")) bench_lists(context, settings, limits, vectors);
        if (many) bench_many_lists(context, settings, vectors);
        if (wanted(settings, "graphs")) bench_graphs(context, vectors);
    }
    return 0;
}

}  // namespace
}  // namespace pgwarp::gpu

int main(int count, char** words) {
    try {
        return pgwarp::gpu::run(count, words);
    } catch (const std::exception& e) {
        std::fprintf(stderr, "cuda_bench: %s\n", e.what());
        return 1;
    }
}
