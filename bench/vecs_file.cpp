#include "bench/vecs_file.h"

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <stdexcept>

#include <unistd.h>

#include "bench/input_file.h"

namespace pgwarp::bench {
namespace {

static_assert(std::endian::native == std::endian::little, "the files are little-endian");

// No set has more dimensions; a larger number means that the file has another format.
constexpr int32_t largest_width = 1 << 20;

char kind_of(const std::string& path) {
    const std::string name = unpacked_name(path);
    for (const char* ending : {".fvecs", ".bvecs", ".ivecs"})
        if (name.ends_with(ending)) return ending[1];
    throw std::runtime_error("unknown format of \"" + path +
                             "\": the name must end in .fvecs, .bvecs or .ivecs (or these with "
                             ".gz or .xz)");
}

// Reads rows of `Stored` into a vector of `Value`; returns the dimension of the rows.
template <typename Stored, typename Value>
size_t read_rows(InputFile& file, size_t limit, std::vector<Value>& values, size_t& rows) {
    std::vector<Stored> row;
    size_t width = 0;
    for (rows = 0; rows < limit; rows++) {
        int32_t row_width = 0;
        const size_t got = file.read(&row_width, sizeof(row_width));
        if (got == 0) break;
        const bool plausible = row_width > 0 && row_width <= largest_width;
        if (got != sizeof(row_width) || !plausible || (rows > 0 && width != size_t(row_width)))
            throw std::runtime_error("could not read \"" + file.path() + "\": row " +
                                     std::to_string(rows) + " has dimension " +
                                     std::to_string(row_width) + ", the first has " +
                                     std::to_string(width));
        width = row_width;
        row.resize(width);
        file.read_exactly(row.data(), width * sizeof(Stored));
        values.insert(values.end(), row.begin(), row.end());
    }
    if (rows == 0) throw std::runtime_error("could not read \"" + file.path() + "\": it is empty");
    return width;
}

}  // namespace

Vectors read_vectors(const std::string& path, size_t limit) {
    const char kind = kind_of(path);
    if (kind == 'i') throw std::runtime_error("\"" + path + "\" holds row numbers, not vectors");
    const auto file = open_input(path);
    Vectors vectors;
    vectors.dims = kind == 'b' ? read_rows<uint8_t>(*file, limit, vectors.values, vectors.rows)
                               : read_rows<float>(*file, limit, vectors.values, vectors.rows);
    return vectors;
}

RowNumbers read_row_numbers(const std::string& path) {
    if (kind_of(path) != 'i') throw std::runtime_error("\"" + path + "\" is not an ivecs file");
    const auto file = open_input(path);
    RowNumbers numbers;
    numbers.width =
        read_rows<int32_t>(*file, std::numeric_limits<size_t>::max(), numbers.values, numbers.rows);
    return numbers;
}

VectorWriter::VectorWriter(const std::string& path)
    : path_(path),
      temporary_(path + "." + std::to_string(getpid()) + ".part"),
      kind_(kind_of(path)) {
    if (unpacked_name(path) != path)
        throw std::runtime_error("could not write \"" + path + "\": packed files are only read");
    file_ = std::fopen(temporary_.c_str(), "wb");
    if (file_ == nullptr)
        throw std::runtime_error("could not write \"" + temporary_ + "\": " + std::strerror(errno));
}

VectorWriter::~VectorWriter() {
    if (file_ == nullptr) return;
    std::fclose(file_);
    std::remove(temporary_.c_str());
}

void VectorWriter::write_bytes(const void* data, size_t size) {
    if (std::fwrite(data, 1, size, file_) != size)
        throw std::runtime_error("could not write \"" + temporary_ + "\": " + std::strerror(errno));
}

void VectorWriter::write(std::span<const float> row) {
    if (kind_ == 'i') throw std::logic_error("floats into an ivecs file");
    const int32_t width = static_cast<int32_t>(row.size());
    write_bytes(&width, sizeof(width));
    if (kind_ == 'f') return write_bytes(row.data(), row.size_bytes());
    bytes_.resize(row.size());
    std::transform(row.begin(), row.end(), bytes_.begin(), [](float value) {
        return static_cast<uint8_t>(std::clamp(std::nearbyint(value), 0.0f, 255.0f));
    });
    write_bytes(bytes_.data(), bytes_.size());
}

void VectorWriter::write(std::span<const int32_t> row) {
    if (kind_ != 'i') throw std::logic_error("row numbers into a file of vectors");
    const int32_t width = static_cast<int32_t>(row.size());
    write_bytes(&width, sizeof(width));
    write_bytes(row.data(), row.size_bytes());
}

void VectorWriter::finish() {
    const int closed = std::fclose(file_);
    file_ = nullptr;
    if (closed != 0)
        throw std::runtime_error("could not write \"" + temporary_ + "\": " + std::strerror(errno));
    std::filesystem::rename(temporary_, path_);
}

}  // namespace pgwarp::bench
