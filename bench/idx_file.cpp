#include "bench/idx_file.h"

#include <algorithm>
#include <cstdint>
#include <stdexcept>

#include "bench/input_file.h"

namespace pgwarp::bench {
namespace {

constexpr uint32_t images_magic = 0x00000803;  // unsigned bytes, three dimensions

uint32_t read_big_endian(InputFile& file) {
    uint8_t bytes[4];
    file.read_exactly(bytes, sizeof(bytes));
    return uint32_t{bytes[0]} << 24 | uint32_t{bytes[1]} << 16 | uint32_t{bytes[2]} << 8 | bytes[3];
}

}  // namespace

Vectors read_idx_images(const std::string& path, size_t limit) {
    const auto file = open_input(path);
    if (read_big_endian(*file) != images_magic)
        throw std::runtime_error("could not read \"" + path + "\": not an idx file of images");
    Vectors vectors;
    vectors.rows = std::min<size_t>(read_big_endian(*file), limit);
    const size_t height = read_big_endian(*file);
    vectors.dims = height * read_big_endian(*file);
    if (vectors.rows == 0 || vectors.dims == 0 || vectors.dims > 1 << 20)
        throw std::runtime_error("could not read \"" + path + "\": no images of a sensible size");

    std::vector<uint8_t> image(vectors.dims);
    vectors.values.reserve(vectors.rows * vectors.dims);
    for (size_t i = 0; i < vectors.rows; i++) {
        file->read_exactly(image.data(), image.size());
        vectors.values.insert(vectors.values.end(), image.begin(), image.end());
    }
    return vectors;
}

}  // namespace pgwarp::bench
