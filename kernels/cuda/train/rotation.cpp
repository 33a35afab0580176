#include "kernels/cuda/train/rotation.h"

#include "kernels/common/codebook_start.h"
#include "kernels/common/linear_algebra.h"
#include "kernels/common/rotation_spread.h"
#include "kernels/cuda/products/products.h"
#include "kernels/cuda/train/cluster_sums.h"
#include "kernels/cuda/train/moments.h"

#include <algorithm>

namespace pgwarp::gpu {

namespace {

constexpr size_t max_chunk_rows = 65536;

size_t chunk_rows(const Context& context, const Rotation& rotation) {
    const size_t row_bytes = (size_t{rotation.from} + rotation.to) * sizeof(float);
    return std::clamp<size_t>(context.scratch() / 4 / row_bytes, 1, max_chunk_rows);
}

}  // namespace

void RotationTrainer::rotate(const Rotation& rotation, const float* rows, size_t count,
                             float* out) {
    if (count == 0) return;
    context_.use();
    const size_t chunk_rows = std::min(count, gpu::chunk_rows(context_, rotation));
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

// A copy of the rows on the device, (count)(to).
Buffer<float> RotationTrainer::rotated_rows(const DeviceRows& rows, size_t count,
                                            const Rotation& rotation) {
    Buffer<float> matrix(context_.memory, size_t{rotation.to} * rotation.from);
    Buffer<float> rotated(context_.memory, count * rotation.to);
    const FinishStream finish(stream_);
    uploader_.upload(matrix.data(), rotation.matrix, matrix.size(), stream_);
    rows.visit_first(
        count, chunk_rows(context_, rotation), stream_,
        [&](const float* chunk, size_t first, size_t here) {
            multiply(blas_, stream_,
                     {CUBLAS_OP_T, CUBLAS_OP_N, rotation.to, here, rotation.from, matrix.data(),
                      rotation.from, chunk, rotation.from, rotated + first * rotation.to});
        });
    return rotated;
}

// What the rotation took from the sum of all squares.
double RotationTrainer::dropped(const DeviceRows& rows, size_t count,
                                const Buffer<float>& rotated) {
    Buffer<double> before(context_.memory, error_blocks), after(context_.memory, error_blocks);
    const FinishStream finish(stream_);
    clear_async(before.data(), before.size(), stream_);
    clear_async(after.data(), after.size(), stream_);
    rows.visit_first(count, OuterSum::chunk_rows, stream_,
                     [&](const float* chunk, size_t, size_t here) {
                         add_squares(chunk, nullptr, here * rows.dims(), before.data(), stream_);
                     });
    add_squares(rotated.data(), nullptr, rotated.size(), after.data(), stream_);
    return std::max(0.0, sum_of_errors(before, stream_) - sum_of_errors(after, stream_));
}

void RotationTrainer::principal_directions(const DeviceRows& rows, size_t count, uint32_t to,
                                           float* matrix) {
    const uint32_t dims = rows.dims();
    const size_t most = std::min(count, OuterSum::chunk_rows);
    const Buffer<float> mean = mean_of(context_, rows, count, stream_);
    Buffer<float> centred(context_.memory, most * dims);
    Buffer<uint32_t> nearest(context_.memory, most);  // the mean, for every row
    OuterSum outer(context_, blas_, stream_, dims, dims);
    const FinishStream finish(stream_);
    clear_async(nearest.data(), nearest.size(), stream_);
    rows.visit_first(count, most, stream_, [&](const float* chunk, size_t, size_t here) {
        // Centre before squaring: far from the origin the difference of squares would be all
        // rounding error.
        copy_async(centred.data(), chunk, here * dims, stream_);
        subtract_nearest(centred.data(), here, dims, mean.data(), nearest.data(), stream_);
        outer.add(centred.data(), centred.data(), here);
    });
    std::vector<float> directions(size_t{dims} * dims), values(dims);
    outer.finish(directions.data());
    eigenvectors(directions.data(), dims, values.data());
    for (uint32_t d = 0; d < to; ++d)
        std::copy_n(directions.data() + size_t{dims - 1 - d} * dims, dims,
                    matrix + size_t{d} * dims);
}

double RotationTrainer::error_after_steps(const DeviceRows& residuals, size_t count,
                                          const QuantizerShape& shape, const float* matrix) {
    const DeviceRows rotated(context_, uploader_, stream_,
                             rotated_rows(residuals, count, {residuals.dims(), shape.dims, matrix}),
                             count, shape.dims);
    std::vector<float> codebook(size_t{shape.dims} * codewords);
    codes_.start(rotated, shape, 0, codebook.data());
    double error = 0;
    for (int i = 0; i < rotation_trial_steps; ++i)
        error = codes_.step(rotated, shape, codebook.data());
    return error;
}

void RotationTrainer::start(const DeviceRows& residuals, size_t count, const QuantizerShape& shape,
                            uint64_t seed, float* matrix, float* codebook) {
    const uint32_t from = residuals.dims();
    std::vector<float> directions(size_t{from} * from), values(from);
    OuterSum outer(context_, blas_, stream_, from, from);
    residuals.visit_first(
        count, OuterSum::chunk_rows, stream_,
        [&](const float* chunk, size_t, size_t here) { outer.add(chunk, chunk, here); });
    outer.finish(directions.data());
    eigenvectors(directions.data(), from, values.data());
    spread_directions(shape, from, directions.data(), values.data(), matrix);
    if (shape.dims == from) {
        std::vector<float> identity(size_t{from} * from);
        for (uint32_t d = 0; d < from; ++d) identity[size_t{d} * from + d] = 1;
        const size_t tried = std::min(count, rotation_trial_rows);
        if (error_after_steps(residuals, tried, shape, identity.data()) <
            error_after_steps(residuals, tried, shape, matrix))
            std::copy(identity.begin(), identity.end(), matrix);
    }
    const std::vector<uint32_t> drawn = draw_codewords(shape, count, seed);
    const std::vector<float> rows = residuals.gather(drawn, stream_);
    std::vector<float> rotated(drawn.size() * shape.dims);
    rotate({from, shape.dims, matrix}, rows.data(), drawn.size(), rotated.data());
    codebook_of_rows(shape, rotated.data(), drawn.size(), codebook);
}

double RotationTrainer::step(const DeviceRows& residuals, size_t count, const QuantizerShape& shape,
                             float* matrix, float* codebook) {
    const uint32_t from = residuals.dims();
    Buffer<float> rows = rotated_rows(residuals, count, {from, shape.dims, matrix});
    // A rotation that keeps all dimensions drops nothing.
    const double lost = shape.dims < from ? dropped(residuals, count, rows) : 0;
    const DeviceRows rotated(context_, uploader_, stream_, std::move(rows), count, shape.dims);
    std::vector<float> moved(codebook, codebook + size_t{shape.dims} * codewords);
    CodedRows coded;
    const double error = codes_.step(rotated, shape, moved.data(), &coded);

    const Model model(context_, stream_, {coded.shape, nullptr, coded.codebook.data()});
    Buffer<float> decoded(context_.memory, std::min(count, OuterSum::chunk_rows) * shape.dims);
    OuterSum outer(context_, blas_, stream_, shape.dims, from);
    const FinishStream finish(stream_);
    residuals.visit_first(count, OuterSum::chunk_rows, stream_,
                          [&](const float* chunk, size_t first, size_t here) {
                              decode_codes(model.view(), coded.codes + first * coded.shape.m, here,
                                           decoded.data(), stream_);
                              outer.add(decoded.data(), chunk, here);
                          });
    std::vector<float> product(size_t{shape.dims} * from), nearest(product.size());
    outer.finish(product.data());
    nearest_orthonormal(product.data(), shape.dims, from, nearest.data());
    std::copy(nearest.begin(), nearest.end(), matrix);
    std::copy(moved.begin(), moved.end(), codebook);
    return error + lost / static_cast<double>(count);
}

}  // namespace pgwarp::gpu
