#include "bench/bin_file.h"

#include <algorithm>
#include <bit>
#include <cstdint>
#include <stdexcept>

#include "bench/input_file.h"
#include "kernels/float16.h"

namespace pgwarp::bench {
namespace {

static_assert(std::endian::native == std::endian::little, "the files are little-endian");

// No set has more dimensions; a larger number means that the file has another format.
constexpr size_t largest_width = 1 << 20;

[[noreturn]] void fail(const std::string& path, const std::string& what) {
    throw std::runtime_error("could not read \"" + path + "\": " + what);
}

struct Shape {
    size_t rows;
    size_t dims;
};

// Sets of more than 2³² rows have two uint64 instead. No run reads that many, so the second uint32
// is then the upper half of the rows, zero, which no number of dimensions is.
Shape read_shape(InputFile& file) {
    uint32_t words[2];
    file.read_exactly(words, sizeof(words));
    Shape shape{words[0], words[1]};
    if (words[1] == 0) {
        uint64_t dims;
        file.read_exactly(&dims, sizeof(dims));
        shape.dims = dims;
    }
    if (shape.rows == 0) fail(file.path(), "it has no rows");
    if (shape.dims == 0 || shape.dims > largest_width)
        fail(file.path(), "rows of " + std::to_string(shape.dims) + " dimensions");
    return shape;
}

float to_value(float value) {
    return value;
}
float to_value(float16 value) {
    return to_float(value);
}
float to_value(uint8_t value) {
    return value;
}
float to_value(int8_t value) {
    return value;
}

template <typename Stored>
Vectors read_values(const std::string& path, size_t limit) {
    const auto file = open_input(path);
    const Shape shape = read_shape(*file);
    Vectors vectors;
    vectors.rows = std::min(shape.rows, limit);
    vectors.dims = shape.dims;
    std::vector<Stored> row(shape.dims);
    for (size_t i = 0; i < vectors.rows; i++) {
        file->read_exactly(row.data(), row.size() * sizeof(Stored));
        for (const Stored value : row) vectors.values.push_back(to_value(value));
    }
    // Rows of another element type would otherwise be read as if they were right.
    char more;
    if (vectors.rows == shape.rows && file->read(&more, 1) != 0)
        fail(path, "it goes on after the " + std::to_string(shape.rows) + " rows of " +
                       std::to_string(shape.dims) + " dimensions that it says it has");
    return vectors;
}

using Reader = Vectors (*)(const std::string& path, size_t limit);

// Null: another format.
Reader reader_of(const std::string& path) {
    const std::string name = unpacked_name(path);
    if (name.ends_with(".fbin")) return read_values<float>;
    if (name.ends_with(".f16bin")) return read_values<float16>;
    if (name.ends_with(".u8bin")) return read_values<uint8_t>;
    if (name.ends_with(".i8bin")) return read_values<int8_t>;
    return nullptr;
}

}  // namespace

bool is_bin(const std::string& path) {
    return reader_of(path) != nullptr;
}

Vectors read_bin(const std::string& path, size_t limit) {
    const Reader reader = reader_of(path);
    if (reader == nullptr)
        throw std::runtime_error("unknown format of \"" + path +
                                 "\": the name must end in .fbin, .f16bin, .u8bin or .i8bin (or "
                                 "these with .gz or .xz)");
    return reader(path, limit);
}

}  // namespace pgwarp::bench
