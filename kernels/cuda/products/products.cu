#include "kernels/cuda/products/products.h"

#include "kernels/cuda/select/keys.h"
#include "kernels/cuda/base/launch.cuh"
#include "kernels/cuda/products/split.cuh"
#include "kernels/cuda/select/warp_select.cuh"

#include <algorithm>

namespace pgwarp::gpu {

namespace {

constexpr unsigned threads = 256;

// One warp per dimension, one lane per sampled row: the median by counting.
__global__ void __launch_bounds__(threads) middle_of(FloatMatrix matrix, float* middle) {
    const uint32_t d = (blockIdx.x * threads + threadIdx.x) / 32;
    if (d >= matrix.dims) return;
    const auto samples = static_cast<uint32_t>(matrix.count < 32 ? matrix.count : 32);
    const bool is_sample = lane_id() < samples;
    const size_t row = is_sample ? matrix.count * lane_id() / samples : 0;
    const float mine = matrix.rows[row * matrix.stride + d];
    const uint64_t key = is_sample ? make_key(mine, lane_id()) : no_key;
    uint32_t place = 0;
    for (int other = 0; other < 32; ++other) place += __shfl_sync(whole_warp, key, other) < key;
    if (is_sample && place == (samples - 1) / 2) middle[d] = mine;
}

// Magnitudes of floats order as their bits do.
__global__ void __launch_bounds__(threads) largest_of(FloatMatrix matrix, uint32_t* largest) {
    uint32_t mine = 0;
    const size_t warp = (size_t{blockIdx.x} * threads + threadIdx.x) / 32;
    const size_t warps = size_t{gridDim.x} * threads / 32;
    for (size_t row = warp; row < matrix.count; row += warps)
        for (uint32_t d = lane_id(); d < matrix.dims; d += 32)
            mine = max(mine, __float_as_uint(fabsf(element(matrix, row, d))));
    mine = __reduce_max_sync(whole_warp, mine);
    if (lane_id() == 0 && mine > 0) atomicMax(largest, mine);
}

// One warp per row. Rows from matrix.count on are padding, and become zeros.
template <Side side>
__global__ void __launch_bounds__(threads)
    split(FloatMatrix matrix, size_t rows, const uint32_t* largest, __half* halves, float* norms) {
    const size_t row = (size_t{blockIdx.x} * threads + threadIdx.x) / 32;
    if (row >= rows) return;
    const bool is_there = row < matrix.count;
    const uint32_t padded = (matrix.dims + 7) / 8 * 8;
    __half* to = halves + row * 3 * padded;
    const float scale = scale_for(*largest);
    float norm = 0;
    for (uint32_t d = lane_id(); d < padded; d += 32) {
        const float x = is_there && d < matrix.dims ? element(matrix, row, d) : 0.0f;
        norm = fmaf(x, x, norm);
        const auto [high, low] = split_number(x * scale);
        to[d] = high;
        to[padded + d] = side == Side::left ? high : low;
        to[2 * padded + d] = side == Side::left ? low : high;
    }
    if (!norms || !is_there) return;
#pragma unroll
    for (int distance = 16; distance > 0; distance /= 2)
        norm += __shfl_xor_sync(whole_warp, norm, distance);
    if (lane_id() == 0) norms[row] = norm;
}

// One warp per row.
__global__ void __launch_bounds__(threads)
    norms_of_halves(SplitMatrix matrix, uint32_t width, float* norms) {
    const size_t row = (size_t{blockIdx.x} * threads + threadIdx.x) / 32;
    if (row >= matrix.count) return;
    const __half* halves = matrix.halves + row * width;
    float norm = 0;
    for (uint32_t d = lane_id(); d < width / 3; d += 32) {
        const float x = __half2float(halves[d]);
        norm = fmaf(x, x, norm);
    }
#pragma unroll
    for (int distance = 16; distance > 0; distance /= 2)
        norm += __shfl_xor_sync(whole_warp, norm, distance);
    const float scale = scale_for(*matrix.scale);
    if (lane_id() == 0) norms[row] = norm / scale / scale;
}

// One block per row of the left.
__global__ void __launch_bounds__(threads)
    plain_products(const __half* left, const __half* right, size_t right_count, uint32_t width,
                   uint32_t depth, const float* factor, float* products, size_t stride) {
    const __half* mine = left + size_t{blockIdx.x} * width;
    for (size_t row = threadIdx.x; row < right_count; row += threads) {
        float sum = 0;
        for (uint32_t d = 0; d < depth; ++d)
            sum = fmaf(__half2float(mine[d]), __half2float(right[row * width + d]), sum);
        products[blockIdx.x * stride + row] = *factor * sum;
    }
}

// One block per column.
__global__ void __launch_bounds__(threads) plain_product(FloatProduct p) {
    const size_t column = blockIdx.x;
    for (size_t row = threadIdx.x; row < p.rows; row += threads) {
        float sum = 0;
        for (size_t i = 0; i < p.inner; ++i) {
            const float a = p.a_operation == CUBLAS_OP_N ? p.a[i * p.a_stride + row]
                                                         : p.a[row * p.a_stride + i];
            const float b = p.b_operation == CUBLAS_OP_N ? p.b[column * p.b_stride + i]
                                                         : p.b[i * p.b_stride + column];
            sum = fmaf(a, b, sum);
        }
        p.c[column * p.rows + row] = sum;
    }
}

__global__ void set_factors(float factor, const uint32_t* left, const uint32_t* right,
                            float* scalars) {
    scalars[0] = factor / scale_for(*left) / scale_for(*right);
    scalars[1] = 0;
}

}  // namespace

void find_origin(const FloatMatrix& matrix, float* origin, cudaStream_t stream) {
    launch("middle_of", middle_of, {divide_up(matrix.dims, threads / 32), threads, 0, stream},
           matrix, origin);
}

void find_largest(const FloatMatrix& matrix, uint32_t* largest, cudaStream_t stream) {
    clear_async(largest, 1, stream);
    const auto blocks = static_cast<unsigned>(divide_up(matrix.count * 32, size_t{threads}));
    launch("largest_of", largest_of, {std::min(blocks, 1056u), threads, 0, stream}, matrix,
           largest);
}

void split_rows(const FloatMatrix& matrix, Side side, __half* halves, uint32_t* scale, float* norms,
                cudaStream_t stream) {
    find_largest(matrix, scale, stream);
    const size_t rows = side == Side::right ? padded_rows(matrix.count) : matrix.count;
    const auto blocks = static_cast<unsigned>(divide_up(rows * 32, size_t{threads}));
    launch("split", side == Side::left ? split<Side::left> : split<Side::right>,
           {blocks, threads, 0, stream}, matrix, rows, scale, halves, norms);
}

void half_norms(const SplitMatrix& matrix, uint32_t dims, float* norms, cudaStream_t stream) {
    const auto blocks = static_cast<unsigned>(divide_up(matrix.count * 32, size_t{threads}));
    launch("norms_of_halves", norms_of_halves, {blocks, threads, 0, stream}, matrix,
           split_width(dims), norms);
}

void multiply(const Blas& blas, cudaStream_t stream, const SplitMatrix& left,
              const SplitMatrix& right, uint32_t dims, float factor, float* products, size_t stride,
              float* scratch, Terms terms) {
    if (left.count == 0 || right.count == 0) return;
    launch("set_factors", set_factors, {1, 1, 0, stream}, factor, left.scale, right.scale, scratch);
    if (clear_products_first) clear_async(products, left.count * stride, stream);
    const uint32_t width = split_width(dims), depth = terms == Terms::all ? width : width / 3;
    if (multiply_ourselves) {
        launch("plain_products", plain_products,
               {static_cast<unsigned>(left.count), threads, 0, stream}, left.halves, right.halves,
               padded_rows(right.count), width, depth, scratch, products, stride);
        return;
    }
    // Row-major (left)(right) is column-major (right)(left): the right matrix goes first.
    const auto row = static_cast<int>(width);
    check(cublasSetPointerMode(blas, CUBLAS_POINTER_MODE_DEVICE), "cublasSetPointerMode");
    const size_t columns = padded_rows(right.count);
    check(
        cublasGemmEx(blas, CUBLAS_OP_T, CUBLAS_OP_N, static_cast<int>(columns),
                     static_cast<int>(left.count), static_cast<int>(depth), scratch, right.halves,
                     CUDA_R_16F, row, left.halves, CUDA_R_16F, row, scratch + 1, products,
                     CUDA_R_32F, static_cast<int>(stride), CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT),
        "cublasGemmEx");
}

void multiply(const Blas& blas, cudaStream_t stream, const FloatProduct& p) {
    if (clear_products_first) clear_async(p.c, p.columns * p.rows, stream);
    if (multiply_ourselves) {
        launch("plain_product", plain_product,
               {static_cast<unsigned>(p.columns), threads, 0, stream}, p);
        return;
    }
    // The other multiply() leaves the handle in device pointer mode.
    check(cublasSetPointerMode(blas, CUBLAS_POINTER_MODE_HOST), "cublasSetPointerMode");
    const float one = 1, zero = 0;
    check(cublasSgemm(blas, p.a_operation, p.b_operation, static_cast<int>(p.rows),
                      static_cast<int>(p.columns), static_cast<int>(p.inner), &one, p.a,
                      static_cast<int>(p.a_stride), p.b, static_cast<int>(p.b_stride), &zero, p.c,
                      static_cast<int>(p.rows)),
          "cublasSgemm");
}

}  // namespace pgwarp::gpu
