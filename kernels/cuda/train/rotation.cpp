#include "kernels/cuda/train/rotation.h"

#include "kernels/common/linear_algebra.h"
#include "kernels/common/rotation_spread.h"
#include "kernels/cuda/products/products.h"

#include <algorithm>

namespace pgwarp::gpu {

namespace {

constexpr size_t most_chunk_rows = 65536;
constexpr size_t sum_rows = 8192;  // rows summed in float32; the chunks' sums add up in float64

double sum_of_squares(const float* values, size_t count) {
    double sum = 0;
    for (size_t i = 0; i < count; ++i) sum += double{values[i]} * values[i];
    return sum;
}

}  // namespace

void RotationTrainer::rotate(const Rotation& rotation, const float* rows, size_t count,
                             float* out) {
    if (count == 0) return;
    context_.use();
    const size_t row_bytes = (size_t{rotation.from} + rotation.to) * sizeof(float);
    const size_t chunk_rows =
        std::min(count, std::clamp<size_t>(context_.scratch() / 4 / row_bytes, 1, most_chunk_rows));
    Buffer<float> matrix(context_.memory, size_t{rotation.to} * rotation.from);
    Buffer<float> from(context_.memory, chunk_rows * rotation.from);
    Buffer<float> to(context_.memory, chunk_rows * rotation.to);
    const FinishStream finish(stream_);
    uploader_.upload(matrix.data(), rotation.matrix, matrix.size(), stream_);
    for (size_t first = 0; first < count; first += chunk_rows) {
        context_.check_interrupt();
        const size_t here = std::min(chunk_rows, count - first);
        uploader_.upload(from.data(), rows + first * rotation.from, here * rotation.from, stream_);
        // cuBLAS is column-major: (to)(rows) = matrix^T (from)(to) times (from)(rows).
        multiply(blas_, stream_,
                 {CUBLAS_OP_T, CUBLAS_OP_N, rotation.to, here, rotation.from, matrix.data(),
                  rotation.from, from.data(), rotation.from, to.data()});
        copy_async(out + first * rotation.to, to.data(), here * rotation.to, stream_);
    }
    check(cudaStreamSynchronize(stream_), "rotate");
}

// out, (a_dims)(b_dims): the sum over rows of a_i^T b_i.
void RotationTrainer::outer_products(const float* a, uint32_t a_dims, const float* b,
                                     uint32_t b_dims, size_t count, float* out) {
    context_.use();
    const size_t rows = std::min(count, sum_rows);
    Buffer<float> left(context_.memory, rows * a_dims), right(context_.memory, rows * b_dims);
    Buffer<float> product(context_.memory, size_t{a_dims} * b_dims);
    std::vector<float> part(product.size());
    std::vector<double> sums(product.size());
    const FinishStream finish(stream_);
    for (size_t first = 0; first < count; first += rows) {
        context_.check_interrupt();
        const size_t here = std::min(rows, count - first);
        uploader_.upload(left.data(), a + first * a_dims, here * a_dims, stream_);
        uploader_.upload(right.data(), b + first * b_dims, here * b_dims, stream_);
        multiply(blas_, stream_,
                 {CUBLAS_OP_N, CUBLAS_OP_T, b_dims, a_dims, here, right.data(), b_dims, left.data(),
                  a_dims, product.data()});
        copy_async(part.data(), product.data(), part.size(), stream_);
        check(cudaStreamSynchronize(stream_), "outer_products");
        for (size_t i = 0; i < part.size(); ++i) sums[i] += part[i];
    }
    std::copy(sums.begin(), sums.end(), out);
}

void RotationTrainer::principal_directions(std::vector<float> rows, uint32_t dims, uint32_t to,
                                           float* matrix) {
    const size_t count = rows.size() / dims;
    std::vector<double> mean(dims);
    for (size_t i = 0; i < rows.size(); ++i) mean[i % dims] += rows[i];
    for (size_t i = 0; i < rows.size(); ++i)
        rows[i] = static_cast<float>(rows[i] - mean[i % dims] / static_cast<double>(count));
    std::vector<float> directions(size_t{dims} * dims), values(dims);
    outer_products(rows.data(), dims, rows.data(), dims, count, directions.data());
    eigenvectors(directions.data(), dims, values.data());
    for (uint32_t d = 0; d < to; ++d)
        std::copy_n(directions.data() + size_t{dims - 1 - d} * dims, dims,
                    matrix + size_t{d} * dims);
}

double RotationTrainer::error_after_steps(const QuantizerShape& shape, const float* residuals,
                                          size_t count, uint32_t from, const float* matrix) {
    std::vector<float> turned(count * shape.dims), codebook(size_t{shape.dims} * codewords);
    rotate({from, shape.dims, matrix}, residuals, count, turned.data());
    const auto data = executor_.take(turned.data(), count, shape.dims);
    executor_.codebook_start(*data, shape, 0, codebook.data());
    double error = 0;
    for (int i = 0; i < rotation_trial_steps; ++i)
        error = executor_.codebook_step(*data, shape, codebook.data());
    return error;
}

void RotationTrainer::rotation_start(const QuantizerShape& shape,
                                     const std::vector<float>& residuals, uint32_t from,
                                     float* matrix) {
    const size_t count = residuals.size() / from;
    std::vector<float> directions(size_t{from} * from), values(from);
    outer_products(residuals.data(), from, residuals.data(), from, count, directions.data());
    eigenvectors(directions.data(), from, values.data());
    spread_directions(shape, from, directions.data(), values.data(), matrix);
    if (shape.dims < from) return;
    std::vector<float> identity(size_t{from} * from);
    for (uint32_t d = 0; d < from; ++d) identity[size_t{d} * from + d] = 1;
    const size_t tried = std::min(count, rotation_trial_rows);
    if (error_after_steps(shape, residuals.data(), tried, from, identity.data()) <
        error_after_steps(shape, residuals.data(), tried, from, matrix))
        std::copy(identity.begin(), identity.end(), matrix);
}

double RotationTrainer::rotation_step(const QuantizerShape& shape,
                                      const std::vector<float>& residuals, uint32_t from,
                                      float* matrix, float* codebook) {
    const size_t count = residuals.size() / from;
    std::vector<float> turned(count * shape.dims);
    rotate({from, shape.dims, matrix}, residuals.data(), count, turned.data());
    const double dropped = std::max(0.0, sum_of_squares(residuals.data(), residuals.size()) -
                                             sum_of_squares(turned.data(), turned.size()));
    std::vector<float> moved(codebook, codebook + size_t{shape.dims} * codewords);
    std::vector<uint8_t> codes(count * shape.m);
    {
        // The same codes that codebook_step() will use: one list, whose centroid is zero.
        QuantizerShape without_lists = shape;
        without_lists.lists = 1;
        const std::vector<float> origin(shape.dims);
        std::vector<uint32_t> lists(count);
        std::vector<float> offsets(count);
        executor_.encode({without_lists, origin.data(), codebook},
                         {turned.data(), count, lists.data(), codes.data(), offsets.data()});
    }
    const auto data = executor_.take(turned.data(), count, shape.dims);
    const double error = executor_.codebook_step(*data, shape, moved.data());

    // Replace the rows by their decoded values.
    for (size_t i = 0; i < count; ++i)
        for (uint32_t j = 0; j < shape.m; ++j)
            for (uint32_t d = shape.piece_begin(j); d < shape.piece_begin(j + 1); ++d)
                turned[i * shape.dims + d] = moved[size_t{d} * codewords + codes[i * shape.m + j]];
    std::vector<float> outer(size_t{shape.dims} * from), nearest(outer.size());
    outer_products(turned.data(), shape.dims, residuals.data(), from, count, outer.data());
    nearest_orthonormal(outer.data(), shape.dims, from, nearest.data());
    std::copy(nearest.begin(), nearest.end(), matrix);
    std::copy(moved.begin(), moved.end(), codebook);
    return error + dropped / static_cast<double>(count);
}

}  // namespace pgwarp::gpu
