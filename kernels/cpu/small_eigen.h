// Eigenvectors of small symmetric matrices, by Jacobi's rotations.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <numeric>

namespace pgwarp {

template <size_t order>
using SmallMatrix = std::array<std::array<double, order>, order>;

template <size_t order>
struct SmallEigen {
    std::array<double, order> values;  // greatest first
    SmallMatrix<order> vectors;        // (row)(vector)
};

// Rotates the axes p and q until matrix[p][q] is 0.
template <size_t order>
void rotate_axes(SmallMatrix<order>& matrix, SmallMatrix<order>& vectors, size_t p, size_t q) {
    if (matrix[p][q] == 0) return;
    const double slope = (matrix[q][q] - matrix[p][p]) / (2 * matrix[p][q]);
    const double tangent = (slope >= 0 ? 1 : -1) / (std::abs(slope) + std::sqrt(slope * slope + 1));
    const double cosine = 1 / std::sqrt(tangent * tangent + 1), sine = tangent * cosine;
    for (size_t i = 0; i < order; ++i) {
        const double a = matrix[i][p], b = matrix[i][q];
        matrix[i][p] = cosine * a - sine * b;
        matrix[i][q] = sine * a + cosine * b;
    }
    for (size_t i = 0; i < order; ++i) {
        const double a = matrix[p][i], b = matrix[q][i];
        matrix[p][i] = cosine * a - sine * b;
        matrix[q][i] = sine * a + cosine * b;
    }
    for (size_t i = 0; i < order; ++i) {
        const double a = vectors[i][p], b = vectors[i][q];
        vectors[i][p] = cosine * a - sine * b;
        vectors[i][q] = sine * a + cosine * b;
    }
}

template <size_t order>
SmallEigen<order> small_eigen(SmallMatrix<order> matrix) {
    SmallMatrix<order> vectors = {};
    for (size_t i = 0; i < order; ++i) vectors[i][i] = 1;
    // Converges quadratically: a dozen sweeps are more than any matrix takes.
    for (int sweep = 0; sweep < 12; ++sweep)
        for (size_t p = 0; p < order; ++p)
            for (size_t q = p + 1; q < order; ++q) rotate_axes(matrix, vectors, p, q);
    std::array<size_t, order> by_value;
    std::iota(by_value.begin(), by_value.end(), size_t{0});
    std::stable_sort(by_value.begin(), by_value.end(),
                     [&](size_t a, size_t b) { return matrix[a][a] > matrix[b][b]; });
    SmallEigen<order> found;
    for (size_t v = 0; v < order; ++v) {
        found.values[v] = matrix[by_value[v]][by_value[v]];
        for (size_t i = 0; i < order; ++i) found.vectors[i][v] = vectors[i][by_value[v]];
    }
    return found;
}

}  // namespace pgwarp
