// Shared by passes over a table: a copy of the model, and encoding of rows before rotation.
#pragma once

#include "kernels/executor.h"

#include <algorithm>
#include <vector>

namespace pgwarp {

// Owns copies of everything that a quantizer borrows.
class QuantizerCopy {
  public:
    QuantizerCopy() = default;
    explicit QuantizerCopy(const Quantizer& from)
        : centroids_(from.centroids, from.centroids + size_t{from.shape.lists} * from.shape.dims),
          codebook_(from.codebook, from.codebook + size_t{from.shape.codebook_rows()} * codewords) {
        copy_ = {from.shape, centroids_.data(), codebook_.data(), from.rotation};
        if (from.parents.count > 0) {
            const size_t floats = size_t{from.parents.count} * from.shape.dims;
            parents_.assign(from.parents.centroids, from.parents.centroids + floats);
            first_.assign(from.parents.first, from.parents.first + from.parents.count + 1);
            copy_.parents = {from.parents.count, parents_.data(), first_.data()};
        }
        if (!from.rotation.matrix) return;
        matrix_.assign(from.rotation.matrix,
                       from.rotation.matrix + size_t{from.rotation.to} * from.rotation.from);
        copy_.rotation.matrix = matrix_.data();
    }
    // Moving keeps the vectors' memory, which copy_ points to; copying would not.
    QuantizerCopy(const QuantizerCopy&) = delete;
    QuantizerCopy& operator=(const QuantizerCopy&) = delete;
    QuantizerCopy(QuantizerCopy&&) = default;
    QuantizerCopy& operator=(QuantizerCopy&&) = default;

    const Quantizer& get() const { return copy_; }

  private:
    std::vector<float> centroids_, codebook_, matrix_, parents_;
    std::vector<uint32_t> first_;
    Quantizer copy_{};
};

// Encodes rows of the table, (count)(table_dims). Where the model has a rotation, rotates them
// first and adds the norm that the rotation dropped to the offsets. `rotated` is scratch.
inline void encode_table_rows(Executor& executor, const Quantizer& quantizer, const Encoding& e,
                              std::vector<float>& rotated) {
    const Rotation& rotation = quantizer.rotation;
    if (!rotation.matrix) return executor.encode(quantizer, e);
    rotated.resize(e.count * rotation.to);
    executor.rotate(rotation, e.rows, e.count, rotated.data());
    Encoding of_rotated = e;
    of_rotated.rows = rotated.data();
    executor.encode(quantizer, of_rotated);
    if (rotation.to == rotation.from || !has_norms(quantizer.shape.metric)) return;
    const auto squares = [](const float* row, uint32_t dims) {
        double sum = 0;
        for (uint32_t d = 0; d < dims; ++d) sum += double{row[d]} * row[d];
        return sum;
    };
    for (size_t i = 0; i < e.count; ++i)
        e.offsets[i] += static_cast<float>(
            std::max(0.0, squares(e.rows + i * rotation.from, rotation.from) -
                              squares(rotated.data() + i * rotation.to, rotation.to)));
}

}  // namespace pgwarp
