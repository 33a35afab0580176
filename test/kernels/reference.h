// Synthetic data, and simple float64 reference implementations of the kernels.
#pragma once

#include "kernels/common.h"
#include "kernels/quantizer.h"

#include <algorithm>
#include <cmath>
#include <ostream>
#include <random>
#include <vector>

namespace pgwarp {

inline size_t between(std::mt19937& random, size_t least, size_t most) {
    return std::uniform_int_distribution<size_t>(least, most)(random);
}

inline std::vector<float> normal_floats(std::mt19937& random, size_t count, float spread = 1) {
    std::normal_distribution<float> normal(0, spread);
    std::vector<float> values(count);
    for (float& value : values) value = normal(random);
    return values;
}

// Small integers have exact sums in any order, so that ties are ties on every machine.
inline std::vector<float> whole_floats(std::mt19937& random, size_t count, int most = 3) {
    std::uniform_int_distribution<int> whole(-most, most);
    std::vector<float> values(count);
    for (float& value : values) value = static_cast<float>(whole(random));
    return values;
}

// (count)(dims): rows scattered around `clusters` well separated centres.
inline std::vector<float> clustered_rows(std::mt19937& random, size_t count, size_t dims,
                                         size_t clusters) {
    const std::vector<float> centres = normal_floats(random, clusters * dims, 10);
    std::vector<float> rows = normal_floats(random, count * dims);
    for (size_t i = 0; i < count; ++i) {
        const float* centre = centres.data() + between(random, 0, clusters - 1) * dims;
        for (size_t d = 0; d < dims; ++d) rows[i * dims + d] += centre[d];
    }
    return rows;
}

inline double reference_product(const float* a, const float* b, size_t dims) {
    double sum = 0;
    for (size_t d = 0; d < dims; ++d) sum += double{a[d]} * b[d];
    return sum;
}

inline double reference_squared_l2(const float* a, const float* b, size_t dims) {
    double sum = 0;
    for (size_t d = 0; d < dims; ++d) sum += (double{a[d]} - b[d]) * (double{a[d]} - b[d]);
    return sum;
}

// The error that |a|^2 + |b|^2 - 2 <a, b> may have in float32: rounding is relative to the norms,
// which can be far larger than the distance. Random errors grow with the square root of dims; the
// factor has a margin.
inline double expansion_tolerance(const float* a, const float* b, size_t dims) {
    const double norms = reference_product(a, a, dims) + reference_product(b, b, dims);
    return norms * (8 + 4 * std::sqrt(static_cast<double>(dims))) * 0x1p-24;
}

inline std::ostream& operator<<(std::ostream& out, const QuantizerShape& shape) {
    return out << shape.dims << " dims, " << shape.m << " pieces, " << shape.lists << " lists";
}

// The element of codeword `code` in a row of the codebook.
inline float codeword_at(const Quantizer& quantizer, uint32_t row, uint8_t code) {
    return quantizer.codebook[size_t{row} * codewords + code];
}

// (dims): centroid plus decoded residual.
inline std::vector<float> decoded(const Quantizer& quantizer, uint32_t list, const uint8_t* code) {
    const QuantizerShape& shape = quantizer.shape;
    const float* centroid = quantizer.centroids + size_t{list} * shape.dims;
    std::vector<float> vector(centroid, centroid + shape.dims);
    for (uint32_t j = 0; j < shape.m; ++j)
        for (uint32_t row = shape.piece_begin(j); row < shape.piece_begin(j + 1); ++row)
            vector[shape.dim_of_row(row)] += codeword_at(quantizer, row, code[j]);
    return vector;
}

// An untrained model of random numbers, which owns its memory.
struct RandomModel {
    QuantizerShape shape;
    std::vector<float> centroids;
    std::vector<float> codebook;

    RandomModel(std::mt19937& random, QuantizerShape of)
        : shape(of),
          centroids(normal_floats(random, size_t{of.lists} * of.dims)),
          codebook(normal_floats(random, size_t{of.codebook_rows()} * codewords, 0.3f)) {}
    Quantizer quantizer() const { return {shape, centroids.data(), codebook.data()}; }
};

}  // namespace pgwarp
