#include "kernels/cpu/pair_directions.h"

#include "kernels/common/linear_algebra.h"
#include "kernels/cpu/products.h"

#include <algorithm>
#include <cmath>

namespace pgwarp {

namespace {

constexpr size_t chunk_rows = 512;  // of the sample
constexpr size_t tile_rows = 64;    // of the covariance

double orthonormal_error(const std::vector<float>& matrix, uint32_t count, uint32_t dims) {
    double sum = 0;
    for (uint32_t i = 0; i < count; ++i)
        for (uint32_t j = 0; j <= i; ++j) {
            const float *a = &matrix[size_t{i} * dims], *b = &matrix[size_t{j} * dims];
            double product = i == j ? -1 : 0;
            for (uint32_t d = 0; d < dims; ++d) product += static_cast<double>(a[d]) * b[d];
            sum += (i == j ? 1 : 2) * product * product;
        }
    return std::sqrt(sum);
}

std::vector<float> mean_of(const GraphRows& sample) {
    std::vector<double> sums(sample.dims);
    for (size_t row = 0; row < sample.count; ++row)
        for (uint32_t d = 0; d < sample.dims; ++d) sums[d] += sample.row(row)[d];
    std::vector<float> mean(sample.dims);
    for (uint32_t d = 0; d < sample.dims; ++d)
        mean[d] = static_cast<float>(sums[d] / static_cast<double>(sample.count));
    return mean;
}

// (dims)(dims): the sum over rows of the outer products of row - mean. In float32: directions that
// are a little off reject a little less.
std::vector<float> covariance(Workers& workers, const GraphRows& sample,
                              const std::vector<float>& mean) {
    const size_t dims = sample.dims;
    std::vector<float> sums(dims * dims), columns(chunk_rows * dims);
    auto scratch = workers.scratch(tile_rows * dims + products_scratch(tile_rows));
    for (size_t first = 0; first < sample.count; first += chunk_rows) {
        const size_t here = std::min(chunk_rows, sample.count - first);
        for (size_t i = 0; i < here; ++i)
            for (size_t d = 0; d < dims; ++d)
                columns[d * here + i] = sample.row(first + i)[d] - mean[d];
        // Its lower triangle.
        workers.run((dims + tile_rows - 1) / tile_rows, [&](size_t tile, int thread) {
            const size_t begin = tile * tile_rows, end = std::min(dims, begin + tile_rows);
            float* products = scratch[static_cast<size_t>(thread)].data();
            inner_products(
                {&columns[begin * here], end - begin, columns.data(), end, here, 1, products},
                products + tile_rows * dims);
            for (size_t i = begin; i < end; ++i, products += end)
                for (size_t j = 0; j < end; ++j) sums[i * dims + j] += products[j];
        });
    }
    for (size_t i = 0; i < dims; ++i)
        for (size_t j = i + 1; j < dims; ++j) sums[i * dims + j] = sums[j * dims + i];
    return sums;
}

}  // namespace

PairDirections find_directions(Workers& workers, const GraphRows& sample, uint32_t count) {
    const size_t dims = sample.dims;
    PairDirections directions{count, std::vector<float>(count * dims), std::vector<float>(dims), 0};
    if (has_norms(sample.metric)) directions.mean = mean_of(sample);
    std::vector<float> vectors = covariance(workers, sample, directions.mean);
    std::vector<float> values(dims);
    eigenvectors(vectors.data(), sample.dims, values.data());
    for (uint32_t i = 0; i < count; ++i)
        std::copy_n(&vectors[(dims - 1 - i) * dims], dims, &directions.matrix[i * dims]);
    directions.error = orthonormal_error(directions.matrix, count, sample.dims);
    return directions;
}

size_t directions_memory(uint32_t dims, uint32_t count, int threads) {
    // The matrix with the workspace of LAPACK, which is twice as large; or with rows of the sample.
    const size_t matrix = size_t{dims} * dims, solving = 2 * matrix + 8 * dims;
    const size_t summing = chunk_rows * dims + static_cast<size_t>(threads) *
                                                   (tile_rows * dims + products_scratch(tile_rows));
    return (matrix + std::max(solving, summing) + size_t{count} * dims) * sizeof(float);
}

double directions_work(uint32_t dims, size_t sample_rows) {
    constexpr double solving = 40;  // times dims^3
    const double square = static_cast<double>(dims) * dims;
    return static_cast<double>(sample_rows) * square / 2 + solving * square * dims;
}

}  // namespace pgwarp
