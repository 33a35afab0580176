#include "bench/dataset.h"

#include <filesystem>
#include <limits>
#include <stdexcept>

#include "bench/idx_file.h"
#include "bench/input_file.h"
#include "bench/vecs_file.h"

namespace pgwarp::bench {
namespace {

namespace fs = std::filesystem;

// Where Debian's package dataset-fashion-mnist puts its files.
constexpr const char* fashion_mnist_directory = "/usr/share/datasets/fashion-mnist";

struct Files {
    std::string base;
    std::string queries;
};

// "" if there is no such file in any supported format.
std::string find_vectors(const std::string& stem) {
    for (const char* format : {".fvecs", ".bvecs"})
        for (const char* packing : {"", ".xz", ".gz"})
            if (std::string path = stem + format + packing; fs::exists(path)) return path;
    return "";
}

std::string find_idx(const fs::path& directory, const std::string& part) {
    for (const char* packing : {"", ".gz", ".xz"})
        if (const fs::path path = directory / (part + "-images-idx3-ubyte" + packing);
            fs::exists(path))
            return path.string();
    return "";
}

Files find_files(const DatasetRequest& request) {
    fs::path stem = request.name;
    if (request.name.find('/') == std::string::npos) stem = fs::path(request.directory) / stem;
    Files files{find_vectors(stem.string() + "_base"), find_vectors(stem.string() + "_query")};
    if (!files.base.empty() && !files.queries.empty()) return files;

    if (request.name == "fashion-mnist" && !fs::exists(stem)) stem = fashion_mnist_directory;
    files = {find_idx(stem, "train"), find_idx(stem, "t10k")};
    if (!files.base.empty() && !files.queries.empty()) return files;

    throw std::runtime_error("data set \"" + request.name + "\" is not there\nDETAIL:  Neither " +
                             stem.string() + "_base.fvecs and _query.fvecs (or .bvecs, packed or " +
                             "not) nor idx files in " + stem.string() +
                             "/.\nHINT:  bench/fetch gets \"glove\" and \"fashion-mnist\".");
}

bool is_idx(const std::string& path) {
    return path.find("-idx3-ubyte") != std::string::npos;
}

Vectors read_any(const std::string& path, size_t limit) {
    if (limit == 0) limit = std::numeric_limits<size_t>::max();
    return is_idx(path) ? read_idx_images(path, limit) : read_vectors(path, limit);
}

}  // namespace

void check_dataset(const DatasetRequest& request) {
    find_files(request);
}

Dataset read_dataset(const DatasetRequest& request) {
    const Files files = find_files(request);
    Dataset dataset;
    dataset.name = fs::path(request.name).filename().string();
    dataset.base = read_any(files.base, request.rows);
    dataset.queries = read_any(files.queries, request.queries);
    dataset.bytes = is_idx(files.base) || unpacked_name(files.base).ends_with(".bvecs");
    if (dataset.base.rows < request.rows)
        throw std::runtime_error("\"" + files.base + "\" has only " +
                                 std::to_string(dataset.base.rows) + " rows, " +
                                 std::to_string(request.rows) + " were asked for");
    if (dataset.base.dims != dataset.queries.dims)
        throw std::runtime_error("\"" + files.base + "\" has " + std::to_string(dataset.base.dims) +
                                 " dimensions, \"" + files.queries + "\" has " +
                                 std::to_string(dataset.queries.dims));
    return dataset;
}

}  // namespace pgwarp::bench
