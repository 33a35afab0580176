// fvecs, bvecs and ivecs: rows of an int32 dimension, then that many float32, uint8 or int32,
// little-endian. Readers take .gz and .xz; writers write plain files.
#pragma once

#include <cstdint>
#include <cstdio>
#include <limits>
#include <string>
#include <vector>

#include "bench/vectors.h"

namespace pgwarp::bench {

// The name sets the format: .fvecs, or .bvecs (whose bytes become floats). At most `limit` rows.
Vectors read_vectors(const std::string& path, size_t limit = std::numeric_limits<size_t>::max());

// A matrix of row numbers, e.g. the neighbors of each query.
struct RowNumbers {
    size_t rows = 0;
    size_t width = 0;
    std::vector<int32_t> values;  // (row)(rank)

    std::span<const int32_t> row(size_t index) const {
        return {values.data() + index * width, width};
    }
};

RowNumbers read_row_numbers(const std::string& path);

// Writes to a temporary name and renames at finish(), so that a run that is stopped leaves no
// partial file that a later run would use.
class VectorWriter {
  public:
    explicit VectorWriter(const std::string& path);  // .fvecs, .bvecs or .ivecs
    ~VectorWriter();
    VectorWriter(const VectorWriter&) = delete;
    VectorWriter& operator=(const VectorWriter&) = delete;

    // For .bvecs values are rounded and clamped to 0..255.
    void write(std::span<const float> row);
    void write(std::span<const int32_t> row);
    void finish();

  private:
    void write_bytes(const void* data, size_t size);

    std::string path_;
    std::string temporary_;
    char kind_;
    FILE* file_ = nullptr;
    std::vector<uint8_t> bytes_;
};

}  // namespace pgwarp::bench
