#include "kernels/cuda/train/sums.h"

#include "kernels/cuda/select/keys.h"
#include "kernels/cuda/base/launch.cuh"
#include "kernels/cuda/base/stream.h"
#include "kernels/cuda/select/warp_select.cuh"

#include <cmath>

namespace pgwarp::gpu {

namespace {

constexpr unsigned threads = 256;

__device__ unsigned long long fixed_point(float value, double factor) {
    return static_cast<unsigned long long>(__double2ll_rn(value * factor));
}

// Adds the block's sum. The order of summation depends on the launch shape only.
__device__ void add_block_error(double mine, double* errors) {
    __shared__ double parts[threads / 32];
#pragma unroll
    for (int distance = 16; distance > 0; distance /= 2)
        mine += __shfl_xor_sync(whole_warp, mine, distance);
    if (lane_id() == 0) parts[threadIdx.x / 32] = mine;
    __syncthreads();
    if (threadIdx.x != 0) return;
    double sum = 0;
    for (double part : parts) sum += part;
    errors[blockIdx.x] += sum;
}

// One warp per row.
__global__ void __launch_bounds__(threads) add_rows_kernel(RowSums s) {
    double error = 0;
    const size_t warps = size_t{gridDim.x} * threads / 32;
    for (size_t row = (size_t{blockIdx.x} * threads + threadIdx.x) / 32; row < s.count;
         row += warps) {
        const uint32_t cluster = s.nearest[row];
        float squares = 0;
        for (uint32_t d = lane_id(); d < s.dims; d += 32) {
            const size_t at = size_t{cluster} * s.dims + d;
            const float x = s.rows[row * s.dims + d], off = x - __ldg(s.centroids + at);
            squares = fmaf(off, off, squares);
            atomicAdd(&s.sums[at], fixed_point(x, s.factor));
        }
        error += squares;
        if (lane_id() == 0) atomicAdd(&s.counts[cluster], 1u);
    }
    add_block_error(error, s.errors);
}

__global__ void __launch_bounds__(threads) add_codes_kernel(DeviceModel model, CodeSums s) {
    const QuantizerShape& shape = model.shape;
    double error = 0;
    const size_t warps = size_t{gridDim.x} * threads / 32;
    for (size_t row = (size_t{blockIdx.x} * threads + threadIdx.x) / 32; row < s.count;
         row += warps) {
        for (uint32_t d = lane_id(); d < shape.dims; d += 32) {
            const uint32_t piece = model.piece_of[d];
            const uint32_t code = s.codes[row * shape.m + piece];
            const size_t at = size_t{d} * codewords + code;
            const float x = s.residuals[row * shape.dims + d];
            const double off = static_cast<double>(x) - model.codebook[at];
            error += off * off;
            atomicAdd(&s.sums[at], fixed_point(x, s.factor));
            if (d == model.piece_begins[piece])
                atomicAdd(&s.counts[size_t{piece} * codewords + code], 1u);
        }
    }
    add_block_error(error, s.errors);
}

__global__ void __launch_bounds__(threads) add_words_kernel(WordSums s) {
    const size_t warps = size_t{gridDim.x} * threads / 32;
    for (size_t row = (size_t{blockIdx.x} * threads + threadIdx.x) / 32; row < s.count;
         row += warps)
        for (uint32_t d = lane_id(); d < s.dims; d += 32) {
            const unsigned long long x = fixed_point(s.residuals[row * s.dims + d], s.factor);
            for (uint32_t k = 0; k < s.books; ++k) {
                const uint32_t word = k * codewords + s.codes[row * s.books + k];
                atomicAdd(&s.sums[size_t{word} * s.dims + d], x);
            }
        }
}

__global__ void __launch_bounds__(threads)
    add_squares_kernel(const float* a, const float* b, size_t count, double* errors) {
    double error = 0;
    for (size_t i = size_t{blockIdx.x} * threads + threadIdx.x; i < count;
         i += size_t{gridDim.x} * threads) {
        const double off = b ? static_cast<double>(a[i]) - b[i] : a[i];
        error += off * off;
    }
    add_block_error(error, errors);
}

// One warp per row.
__global__ void __launch_bounds__(threads)
    decode_kernel(DeviceModel model, const uint8_t* codes, size_t count, float* rows) {
    const uint32_t dims = model.shape.dims, m = model.shape.m;
    const bool additive = model.shape.search_rounds > 0;
    const size_t warps = size_t{gridDim.x} * threads / 32;
    for (size_t row = (size_t{blockIdx.x} * threads + threadIdx.x) / 32; row < count;
         row += warps) {
        const uint8_t* code = codes + row * m;
        for (uint32_t d = lane_id(); d < dims; d += 32) {
            float x = 0;
            if (additive)
                for (uint32_t j = 0; j < m; ++j)
                    x += model.codebook[(size_t{j} * dims + d) * codewords + code[j]];
            else
                x = model.codebook[size_t{d} * codewords + code[model.piece_of[d]]];
            rows[row * dims + d] = x;
        }
    }
}

__device__ float mean(unsigned long long sum, uint32_t count, double factor, float before) {
    if (count == 0) return before;
    return static_cast<float>(static_cast<double>(static_cast<long long>(sum)) / factor / count);
}

__global__ void row_means_kernel(const unsigned long long* sums, const uint32_t* counts,
                                 size_t total, uint32_t dims, double factor, float* means) {
    const size_t i = size_t{blockIdx.x} * blockDim.x + threadIdx.x;
    if (i < total) means[i] = mean(sums[i], counts[i / dims], factor, means[i]);
}

// One block per dimension, one thread per codeword.
__global__ void code_means_kernel(DeviceModel model, const unsigned long long* sums,
                                  const uint32_t* counts, double factor, float* codebook) {
    const uint32_t d = blockIdx.x;
    const size_t at = size_t{d} * codewords + threadIdx.x;
    const uint32_t count = counts[size_t{model.piece_of[d]} * codewords + threadIdx.x];
    codebook[at] = mean(sums[at], count, factor, codebook[at]);
}

__global__ void largest_kernel(const float* values, size_t count, uint32_t* largest) {
    uint32_t mine = 0;
    for (size_t i = size_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count;
         i += size_t{gridDim.x} * blockDim.x)
        mine = max(mine, __float_as_uint(fabsf(values[i])));
    mine = __reduce_max_sync(whole_warp, mine);
    if (lane_id() == 0 && mine > 0) atomicMax(largest, mine);
}

__global__ void subtract_nearest_kernel(float* rows, size_t total, uint32_t dims,
                                        const float* centroids, const uint32_t* nearest) {
    for (size_t i = size_t{blockIdx.x} * blockDim.x + threadIdx.x; i < total;
         i += size_t{gridDim.x} * blockDim.x)
        rows[i] -= centroids[size_t{nearest[i / dims]} * dims + i % dims];
}

__global__ void gather_kernel(const float* rows, uint32_t dims, const uint32_t* indices,
                              float* to) {
    for (uint32_t d = threadIdx.x; d < dims; d += blockDim.x)
        to[size_t{blockIdx.x} * dims + d] = rows[size_t{indices[blockIdx.x]} * dims + d];
}

}  // namespace

float largest_magnitude(const Context& context, const float* values, size_t count,
                        cudaStream_t stream) {
    Buffer<uint32_t> largest(context.memory, 1);
    const FinishStream finish(stream);
    clear_async(largest.data(), 1, stream);
    launch("largest", largest_kernel, {8 * context.processors, threads, 0, stream}, values, count,
           largest.data());
    uint32_t bits = 0;
    copy_async(&bits, largest.data(), 1, stream);
    check(cudaStreamSynchronize(stream), "largest_magnitude");
    return bits_float(bits);
}

double fixed_point_factor(float largest, size_t rows) {
    if (!(largest > 0)) return 1;
    return std::ldexp(1.0, 61 - std::ilogb(largest) - std::ilogb(static_cast<double>(rows) + 1));
}

void add_rows(const RowSums& sums, cudaStream_t stream) {
    launch("add_rows", add_rows_kernel, {error_blocks, threads, 0, stream}, sums);
}

void add_codes(const DeviceModel& model, const CodeSums& sums, cudaStream_t stream) {
    launch("add_codes", add_codes_kernel, {error_blocks, threads, 0, stream}, model, sums);
}

void add_words(const WordSums& sums, cudaStream_t stream) {
    launch("add_words", add_words_kernel, {error_blocks, threads, 0, stream}, sums);
}

void add_squares(const float* a, const float* b, size_t count, double* errors,
                 cudaStream_t stream) {
    launch("add_squares", add_squares_kernel, {error_blocks, threads, 0, stream}, a, b, count,
           errors);
}

void decode_codes(const DeviceModel& model, const uint8_t* codes, size_t count, float* rows,
                  cudaStream_t stream) {
    if (count == 0) return;
    launch("decode_codes", decode_kernel, {4096, threads, 0, stream}, model, codes, count, rows);
}

void row_means(const unsigned long long* sums, const uint32_t* counts, uint32_t clusters,
               uint32_t dims, double factor, float* means, cudaStream_t stream) {
    const size_t total = size_t{clusters} * dims;
    launch("row_means", row_means_kernel,
           {static_cast<unsigned>(divide_up(total, size_t{threads})), threads, 0, stream}, sums,
           counts, total, dims, factor, means);
}

void code_means(const DeviceModel& model, const unsigned long long* sums, const uint32_t* counts,
                double factor, float* codebook, cudaStream_t stream) {
    launch("code_means", code_means_kernel, {model.shape.dims, codewords, 0, stream}, model, sums,
           counts, factor, codebook);
}

void subtract_nearest(float* rows, size_t count, uint32_t dims, const float* centroids,
                      const uint32_t* nearest, cudaStream_t stream) {
    if (count == 0) return;
    launch("subtract_nearest", subtract_nearest_kernel, {4096, threads, 0, stream}, rows,
           count * dims, dims, centroids, nearest);
}

void gather_rows(const float* rows, uint32_t dims, const uint32_t* indices, size_t count, float* to,
                 cudaStream_t stream) {
    launch("gather_rows", gather_kernel, {static_cast<unsigned>(count), 128, 0, stream}, rows, dims,
           indices, to);
}

}  // namespace pgwarp::gpu
