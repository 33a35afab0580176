#include "kernels/cpu/row_statistics.h"

#include <algorithm>
#include <vector>

namespace pgwarp {

double variance_of_rows(const float* rows, size_t count, uint32_t dims) {
    if (count == 0) return 0;
    // One accumulator a dimension, so that no addition waits for the one before.
    std::vector<double> sums(dims), squares(dims);
    for (size_t i = 0; i < count; ++i) {
        const float* row = rows + i * dims;
        for (uint32_t d = 0; d < dims; ++d) {
            sums[d] += row[d];
            squares[d] += static_cast<double>(row[d]) * row[d];
        }
    }
    const auto n = static_cast<double>(count);
    double variance = 0;
    for (uint32_t d = 0; d < dims; ++d) variance += squares[d] / n - sums[d] / n * (sums[d] / n);
    return std::max(0.0, variance);
}

double error_of_codes(const QuantizerShape& shape, const float* codebook, const float* residuals,
                      size_t count, const uint8_t* codes) {
    if (count == 0) return 0;
    const uint32_t dims = shape.dims;
    std::vector<uint32_t> piece_of(dims);
    if (!shape.additive())
        for (uint32_t j = 0; j < shape.m; ++j)
            std::fill(piece_of.begin() + shape.piece_begin(j),
                      piece_of.begin() + shape.piece_begin(j + 1), j);
    double error = 0;
    for (size_t i = 0; i < count; ++i)
        for (uint32_t d = 0; d < dims; ++d) {
            const uint8_t* code = codes + i * shape.m;
            double off = residuals[i * dims + d];
            if (shape.additive())
                for (uint32_t j = 0; j < shape.m; ++j)
                    off -= codebook[(size_t{j} * dims + d) * codewords + code[j]];
            else
                off -= codebook[size_t{d} * codewords + code[piece_of[d]]];
            error += off * off;
        }
    return error / static_cast<double>(count);
}

}  // namespace pgwarp
