#include "kernels/cuda/train/moments.h"

#include "kernels/cuda/products/products.h"
#include "kernels/cuda/train/cluster_sums.h"

#include <algorithm>

namespace pgwarp::gpu {

namespace {

constexpr size_t max_chunk_rows = 65536;

// Adds all rows as one cluster with this centre, (dims).
void add_all(const Context& context, const DeviceRows& rows, size_t count, double factor,
             const float* centre, const ClusterSums& sums, cudaStream_t stream) {
    const size_t row_bytes = rows.dims() * sizeof(float);
    const size_t chunk_rows =
        std::min(count, std::clamp<size_t>(context.scratch() / 4 / row_bytes, 1, max_chunk_rows));
    Buffer<uint32_t> nearest(context.memory, chunk_rows);
    const FinishStream finish(stream);
    clear_async(nearest.data(), nearest.size(), stream);
    rows.visit_first(count, chunk_rows, stream, [&](const float* chunk, size_t, size_t here) {
        add_rows({chunk, nearest.data(), centre, here, rows.dims(), factor, sums.sums.data(),
                  sums.counts.data(), sums.errors.data()},
                 stream);
    });
}

}  // namespace

Buffer<float> mean_of(const Context& context, const DeviceRows& rows, size_t count,
                      cudaStream_t stream) {
    const double factor = fixed_point_factor(rows.largest(), rows.count());
    Buffer<float> mean(context.memory, rows.dims());
    const ClusterSums sums(context.memory, rows.dims(), 1, stream);
    const FinishStream finish(stream);
    clear_async(mean.data(), mean.size(), stream);
    add_all(context, rows, count, factor, mean.data(), sums, stream);
    row_means(sums.sums.data(), sums.counts.data(), 1, rows.dims(), factor, mean.data(), stream);
    return mean;
}

double variance_of(const Context& context, const DeviceRows& rows, size_t count,
                   cudaStream_t stream) {
    if (count == 0) return 0;
    const Buffer<float> mean = mean_of(context, rows, count, stream);
    const ClusterSums sums(context.memory, rows.dims(), 1, stream);
    add_all(context, rows, count, fixed_point_factor(rows.largest(), rows.count()), mean.data(),
            sums, stream);
    return sums.error(stream) / static_cast<double>(count);
}

OuterSum::OuterSum(const Context& context, const Blas& blas, cudaStream_t stream, uint32_t a_dims,
                   uint32_t b_dims)
    : blas_(blas),
      stream_(stream),
      a_dims_(a_dims),
      b_dims_(b_dims),
      product_(context.memory, size_t{a_dims} * b_dims),
      part_(product_.size()),
      sums_(product_.size()) {}

void OuterSum::add(const float* a, const float* b, size_t count) {
    multiply(blas_, stream_,
             {CUBLAS_OP_N, CUBLAS_OP_T, b_dims_, a_dims_, count, b, b_dims_, a, a_dims_,
              product_.data()});
    copy_async(part_.data(), static_cast<const float*>(product_.data()), part_.size(), stream_);
    check(cudaStreamSynchronize(stream_), "outer products");
    for (size_t i = 0; i < part_.size(); ++i) sums_[i] += part_[i];
}

void OuterSum::finish(float* out) const {
    std::copy(sums_.begin(), sums_.end(), out);
}

}  // namespace pgwarp::gpu
