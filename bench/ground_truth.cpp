#include "bench/ground_truth.h"

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <iostream>

#include "bench/neighbors.h"
#include "bench/parallel.h"

namespace pgwarp::bench {
namespace {

// Neighbors stored even if k is smaller, so that a run with another k can use the file.
constexpr size_t min_width = 100;

// FNV-1a over 32-bit words.
uint64_t hash(const Vectors& vectors, uint64_t state) {
    for (const float value : vectors.values) {
        uint32_t word;
        std::memcpy(&word, &value, sizeof(word));
        state = (state ^ word) * 0x100000001b3u;
    }
    return state;
}

std::string file_name(Metric metric, const Dataset& dataset, size_t width) {
    return dataset.name + "_truth_" + metric_name(metric) + "_" +
           std::to_string(dataset.base.rows) + "x" + std::to_string(dataset.queries.rows) + "x" +
           std::to_string(width) + "_" + fingerprint(dataset) + ".ivecs";
}

}  // namespace

std::string fingerprint(const Dataset& dataset) {
    const uint64_t state = hash(dataset.queries, hash(dataset.base, 0xcbf29ce484222325u));
    char text[17];
    std::snprintf(text, sizeof(text), "%016llx", static_cast<unsigned long long>(state));
    return text;
}

RowNumbers ground_truth(Metric metric, const Dataset& dataset, size_t k,
                        const std::string& directory) {
    const size_t width = std::min(std::max(k, min_width), dataset.base.rows);
    const auto path = std::filesystem::path(directory) / file_name(metric, dataset, width);
    if (std::filesystem::exists(path)) return read_row_numbers(path.string());

    std::cerr << "computing " << width << " exact neighbors of " << dataset.queries.rows
              << " queries\n";
    RowNumbers numbers =
        exact_neighbors(metric, dataset.base, dataset.queries, width, default_threads());
    std::filesystem::create_directories(directory);
    VectorWriter writer(path.string());
    for (size_t row = 0; row < numbers.rows; row++) writer.write(numbers.row(row));
    writer.finish();
    return numbers;
}

}  // namespace pgwarp::bench
