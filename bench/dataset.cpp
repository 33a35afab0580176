#include "bench/dataset.h"

#include <algorithm>
#include <filesystem>
#include <limits>
#include <stdexcept>

#include "bench/bin_file.h"
#include "bench/hdf5_file.h"
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
    std::string queries;  // the same file, if that is HDF5
};

bool is_hdf5(const std::string& path) {
    return path.ends_with(".hdf5");
}

bool is_idx(const std::string& path) {
    return path.find("-idx3-ubyte") != std::string::npos;
}

// "" if there is no such file in any supported format.
std::string find_vectors(const std::string& stem) {
    for (const char* format : {".fvecs", ".bvecs", ".fbin", ".f16bin", ".u8bin", ".i8bin"})
        for (const char* packing : {"", ".xz", ".gz"})
            if (std::string path = stem + format + packing; fs::exists(path)) return path;
    return "";
}

// A file of a data set of cuvs-bench: base.fbin, or the one file base.*.fbin, such as base.1B.fbin.
// "" if the folder has none.
std::string find_part(const fs::path& folder, const std::string& part) {
    std::string found = find_vectors((folder / part).string());
    if (!found.empty() || !fs::is_directory(folder)) return found;
    for (const fs::directory_entry& entry : fs::directory_iterator(folder)) {
        const std::string path = entry.path().string();
        if (!entry.path().filename().string().starts_with(part + ".") || !is_bin(path)) continue;
        if (!found.empty())
            throw std::runtime_error("both \"" + std::min(found, path) + "\" and \"" +
                                     std::max(found, path) + "\" may be the data's " + part +
                                     "\nHINT:  Link the one you want to " + part + ".fbin, say.");
        found = path;
    }
    return found;
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
    for (const char* separator : {"_", "."}) {
        const std::string prefix = stem.string() + separator;
        Files files{find_vectors(prefix + "base"), find_vectors(prefix + "query")};
        if (!files.base.empty() && !files.queries.empty()) return files;
    }
    if (Files files{find_part(stem, "base"), find_part(stem, "query")};
        !files.base.empty() && !files.queries.empty())
        return files;
    const std::string hdf5 = is_hdf5(stem.string()) ? stem.string() : stem.string() + ".hdf5";
    if (fs::exists(hdf5)) return {hdf5, hdf5};

    if (request.name == "fashion-mnist" && !fs::exists(stem)) stem = fashion_mnist_directory;
    const Files files{find_idx(stem, "train"), find_idx(stem, "t10k")};
    if (!files.base.empty() && !files.queries.empty()) return files;

    throw std::runtime_error(
        "data set \"" + request.name + "\" is not there\nDETAIL:  There are neither " +
        stem.string() +
        "_base.fvecs and _query.fvecs (or .bvecs, .fbin, .f16bin, .u8bin, .i8bin, " +
        "packed or not), nor base.fbin and query.fbin or idx files in " + stem.string() +
        "/, nor " + hdf5 + ".\nHINT:  bench/fetch gets \"glove\" and \"fashion-mnist\".");
}

// `part`: "train" or "test", for a file that has both.
Vectors read_any(const std::string& path, const char* part, size_t limit) {
    if (limit == 0) limit = std::numeric_limits<size_t>::max();
    if (is_hdf5(path)) return read_hdf5(path, part, limit);
    if (is_idx(path)) return read_idx_images(path, limit);
    return is_bin(path) ? read_bin(path, limit) : read_vectors(path, limit);
}

bool has_bytes(const std::string& path) {
    const std::string name = unpacked_name(path);
    return is_idx(path) || name.ends_with(".bvecs") || name.ends_with(".u8bin");
}

}  // namespace

void check_dataset(const DatasetRequest& request) {
    find_files(request);
}

Metric metric_of(const DatasetRequest& request) {
    const Files files = find_files(request);
    return is_hdf5(files.base) ? read_hdf5_metric(files.base) : Metric::l2;
}

Dataset read_dataset(const DatasetRequest& request) {
    const Files files = find_files(request);
    Dataset dataset;
    fs::path name = request.name;
    if (is_hdf5(name.string())) name.replace_extension();
    if (!name.has_filename()) name = name.parent_path();  // a directory, written with its slash
    dataset.name = name.filename().string();
    dataset.base = read_any(files.base, "train", request.rows);
    dataset.queries = read_any(files.queries, "test", request.queries);
    dataset.bytes = has_bytes(files.base);
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
