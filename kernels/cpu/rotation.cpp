#include "kernels/rotation.h"

#include "kernels/common/codebook_start.h"
#include "kernels/common/linear_algebra.h"
#include "kernels/cpu/products.h"
#include "kernels/common/rotation_spread.h"
#include "kernels/distance.h"
#include "kernels/product_quantizer.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <vector>

namespace pgwarp {

namespace {

constexpr size_t tile_rows = 64;
constexpr size_t chunk_rows = 1024;
constexpr size_t centred_rows = 8192;

size_t tiles_of(size_t count, size_t tile) {
    return (count + tile - 1) / tile;
}

// (count)(dims) to (dims)(count)
void transpose(const float* from, size_t count, uint32_t dims, float* to) {
    for (size_t i = 0; i < count; ++i)
        for (uint32_t d = 0; d < dims; ++d) to[d * count + i] = from[i * dims + d];
}

// out, (a_dims)(b_dims), becomes the sum over rows of a_i^T b_i: a is (count)(a_dims), b is
// (count)(b_dims). Chunks are summed in float64, so that the sum of many rows keeps its precision.
void sum_of_outer_products(Workers& workers, const float* a, uint32_t a_dims, const float* b,
                           uint32_t b_dims, size_t count, float* out) {
    std::vector<double> sums(size_t{a_dims} * b_dims);
    std::vector<float> a_columns(chunk_rows * a_dims), b_columns(chunk_rows * b_dims);
    auto scratch = workers.scratch(tile_rows * b_dims + products_scratch(tile_rows));
    for (size_t first = 0; first < count; first += chunk_rows) {
        const size_t here = std::min(chunk_rows, count - first);
        transpose(a + first * a_dims, here, a_dims, a_columns.data());
        transpose(b + first * b_dims, here, b_dims, b_columns.data());
        workers.run(tiles_of(a_dims, tile_rows), [&](size_t tile, int thread) {
            const size_t begin = tile * tile_rows;
            const size_t rows = std::min<size_t>(tile_rows, a_dims - begin);
            float* products = scratch[thread].data();
            inner_products({a_columns.data() + begin * here, rows, b_columns.data(), b_dims, here,
                            1, products},
                           products + rows * b_dims);
            double* to = sums.data() + begin * b_dims;
            for (size_t i = 0; i < rows * b_dims; ++i) to[i] += products[i];
        });
    }
    std::copy(sums.begin(), sums.end(), out);
}

double sum_of_squares(const float* values, size_t count) {
    double sum = 0;
    for (size_t i = 0; i < count; ++i) sum += double{values[i]} * values[i];
    return sum;
}

}  // namespace

void rotate(Workers& workers, const Rotation& rotation, const float* rows, size_t count,
            float* out) {
    auto scratch = workers.scratch(products_scratch(tile_rows));
    workers.run(tiles_of(count, tile_rows), [&](size_t tile, int thread) {
        const size_t begin = tile * tile_rows;
        inner_products({rows + begin * rotation.from, std::min(tile_rows, count - begin),
                        rotation.matrix, rotation.to, rotation.from, 1, out + begin * rotation.to},
                       scratch[thread].data());
    });
}

void rotate_one(const Rotation& rotation, const float* row, float* out) noexcept {
    dot_products(row, {rotation.matrix, rotation.from, rotation.to}, rotation.from, out);
}

float dropped_norm(const float* row, uint32_t from, const float* rotated, uint32_t to) noexcept {
    // A rotation that keeps all dimensions changes norms by rounding only.
    if (to >= from) return 0;
    return static_cast<float>(std::max(0.0, squared_norm(row, from) - squared_norm(rotated, to)));
}

void principal_directions(Workers& workers, const float* rows, size_t count, uint32_t dims,
                          uint32_t to, float* matrix) {
    std::vector<double> mean(dims);
    for (size_t i = 0; i < count; ++i)
        for (uint32_t d = 0; d < dims; ++d) mean[d] += rows[i * dims + d];
    // Centre before squaring: far from the origin the difference of squares would be all rounding
    // error.
    std::vector<float> centred(std::min(count, centred_rows) * dims);
    std::vector<float> part(size_t{dims} * dims);
    std::vector<double> sums(part.size());
    for (size_t first = 0; first < count; first += centred_rows) {
        const size_t here = std::min(centred_rows, count - first);
        for (size_t i = 0; i < here * dims; ++i)
            centred[i] = static_cast<float>(rows[first * dims + i] -
                                            mean[i % dims] / static_cast<double>(count));
        sum_of_outer_products(workers, centred.data(), dims, centred.data(), dims, here,
                              part.data());
        for (size_t i = 0; i < part.size(); ++i) sums[i] += part[i];
    }
    std::copy(sums.begin(), sums.end(), part.begin());
    std::vector<float> values(dims);
    eigenvectors(part.data(), dims, values.data());
    for (uint32_t d = 0; d < to; ++d)
        std::copy_n(part.data() + size_t{dims - 1 - d} * dims, dims, matrix + size_t{d} * dims);
}

namespace {

// The error of a product quantizer under a rotation, after a few steps of the codebook.
double error_after_steps(Workers& workers, const QuantizerShape& shape, const float* residuals,
                         size_t count, uint32_t from, const float* matrix) {
    std::vector<float> rotated(count * shape.dims), codebook(size_t{shape.dims} * codewords);
    rotate(workers, {from, shape.dims, matrix}, residuals, count, rotated.data());
    codebook_start(shape, rotated.data(), count, 0, codebook.data());
    double error = 0;
    for (int i = 0; i < rotation_trial_steps; ++i)
        error = codebook_step(workers, shape, rotated.data(), count, codebook.data());
    return error;
}

}  // namespace

void rotation_start(Workers& workers, const QuantizerShape& shape, const float* residuals,
                    size_t count, uint32_t from, float* matrix) {
    std::vector<float> directions(size_t{from} * from), values(from);
    sum_of_outer_products(workers, residuals, from, residuals, from, count, directions.data());
    eigenvectors(directions.data(), from, values.data());
    spread_directions(shape, from, directions.data(), values.data(), matrix);
    if (shape.dims < from) return;
    std::vector<float> identity(size_t{from} * from);
    for (uint32_t d = 0; d < from; ++d) identity[size_t{d} * from + d] = 1;
    const size_t tried = std::min(count, rotation_trial_rows);
    if (error_after_steps(workers, shape, residuals, tried, from, identity.data()) <
        error_after_steps(workers, shape, residuals, tried, from, matrix))
        std::copy(identity.begin(), identity.end(), matrix);
}

void rotated_codebook_start(Workers& workers, const QuantizerShape& shape, const Rotation& rotation,
                            const float* residuals, size_t count, uint64_t seed, float* codebook) {
    const std::vector<uint32_t> drawn = draw_codewords(shape, count, seed);
    std::vector<float> rows(drawn.size() * rotation.from), rotated(drawn.size() * rotation.to);
    for (size_t i = 0; i < drawn.size(); ++i)
        std::copy_n(residuals + size_t{drawn[i]} * rotation.from, rotation.from,
                    rows.data() + i * rotation.from);
    rotate(workers, rotation, rows.data(), drawn.size(), rotated.data());
    codebook_of_rows(shape, rotated.data(), drawn.size(), codebook);
}

double rotation_step(Workers& workers, const QuantizerShape& shape, const float* residuals,
                     size_t count, uint32_t from, float* matrix, float* codebook) {
    std::vector<float> rotated(count * shape.dims);
    rotate(workers, {from, shape.dims, matrix}, residuals, count, rotated.data());
    const double dropped = std::max(0.0, sum_of_squares(residuals, count * from) -
                                             sum_of_squares(rotated.data(), rotated.size()));
    std::vector<float> moved(codebook, codebook + size_t{shape.dims} * codewords);
    std::vector<uint8_t> codes(count * shape.m);
    const double error =
        codebook_step(workers, shape, rotated.data(), count, moved.data(), codes.data());

    // Reuses `rotated` for the decoded residuals.
    for (size_t i = 0; i < count; ++i)
        for (uint32_t j = 0; j < shape.m; ++j)
            for (uint32_t d = shape.piece_begin(j); d < shape.piece_begin(j + 1); ++d)
                rotated[i * shape.dims + d] = moved[size_t{d} * codewords + codes[i * shape.m + j]];
    std::vector<float> outer(size_t{shape.dims} * from), nearest(outer.size());
    sum_of_outer_products(workers, rotated.data(), shape.dims, residuals, from, count,
                          outer.data());
    nearest_orthonormal(outer.data(), shape.dims, from, nearest.data());
    std::copy(nearest.begin(), nearest.end(), matrix);
    std::copy(moved.begin(), moved.end(), codebook);
    return error + dropped / static_cast<double>(count);
}

}  // namespace pgwarp
