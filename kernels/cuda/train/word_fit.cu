#include "kernels/cuda/train/word_fit.h"

#include "kernels/cuda/base/launch.cuh"
#include "kernels/cuda/products/products.h"

namespace pgwarp::gpu {

namespace {

constexpr int iterations = 60;
// A dimension has converged when its measure is this fraction of the initial one. Below that, only
// rounding remains, and then values too small to divide by.
constexpr double close_enough = 1e-12;
constexpr unsigned threads = 256;
// A block solves block_dims dimensions for all words, which block_rows rows of threads share.
constexpr unsigned block_dims = 32, block_rows = 32;

__global__ void __launch_bounds__(threads)
    count_pairs(LsqShape shape, const uint8_t* codes, size_t count, uint32_t* together) {
    const size_t i = size_t{blockIdx.x} * threads + threadIdx.x;
    if (i >= count * shape.books) return;
    const size_t row = i / shape.books, words = size_t{shape.books} * codewords;
    const auto k = static_cast<uint32_t>(i % shape.books);
    const uint8_t* code = codes + row * shape.books;
    uint32_t* line = together + (size_t{k} * codewords + code[k]) * words;
    for (uint32_t l = 0; l < shape.books; ++l) atomicAdd(&line[l * codewords + code[l]], 1u);
}

__global__ void __launch_bounds__(threads)
    make_matrix(const uint32_t* together, size_t words, float weight, float* matrix,
                float* inverse_diagonal) {
    const size_t i = size_t{blockIdx.x} * threads + threadIdx.x;
    if (i >= words * words) return;
    float value = static_cast<float>(together[i]);
    if (i / words == i % words) {
        value += weight;
        inverse_diagonal[i / words] = 1 / value;
    }
    matrix[i] = value;
}

// All (words)(dims).
struct Gradients {
    uint32_t words;
    uint32_t dims;
    const float* inverse_diagonal;  // (words)
    const float* product;           // the matrix times the words, or times the direction
    float* solution;
    float* residual;
    float* direction;
    double* measure;  // (dims): <r, D^-1 r>
    double* first;    // (dims): the initial measure
};

// The block's sum for each of its dimensions. All threads of a dimension get it.
__device__ double column_sum(double mine) {
    __shared__ double parts[block_rows][block_dims];
    __syncthreads();
    parts[threadIdx.y][threadIdx.x] = mine;
    __syncthreads();
    double sum = 0;
    for (unsigned row = 0; row < block_rows; ++row) sum += parts[row][threadIdx.x];
    return sum;
}

__global__ void __launch_bounds__(block_dims* block_rows)
    begin(Gradients g, const unsigned long long* sums, double factor) {
    const uint32_t d = blockIdx.x * block_dims + threadIdx.x;
    const bool inside = d < g.dims;
    double measure = 0;
    for (uint32_t w = threadIdx.y; w < g.words && inside; w += block_rows) {
        const size_t at = size_t{w} * g.dims + d;
        const double wanted = static_cast<double>(static_cast<long long>(sums[at])) / factor;
        const auto r = static_cast<float>(wanted - g.product[at]);
        const float z = r * g.inverse_diagonal[w];
        g.residual[at] = r;
        g.direction[at] = z;
        measure += double{r} * z;
    }
    measure = column_sum(measure);
    if (inside && threadIdx.y == 0) g.measure[d] = g.first[d] = measure;
}

__global__ void __launch_bounds__(block_dims* block_rows) advance(Gradients g) {
    const uint32_t d = blockIdx.x * block_dims + threadIdx.x;
    const bool inside = d < g.dims;
    const double before = inside ? g.measure[d] : 0;
    double curvature = 0;
    for (uint32_t w = threadIdx.y; w < g.words && inside; w += block_rows) {
        const size_t at = size_t{w} * g.dims + d;
        curvature += double{g.direction[at]} * g.product[at];
    }
    curvature = column_sum(curvature);
    const bool done = !inside || before <= close_enough * g.first[d];
    const float step = !done && curvature > 0 ? static_cast<float>(before / curvature) : 0;
    double measure = 0;
    for (uint32_t w = threadIdx.y; w < g.words && inside; w += block_rows) {
        const size_t at = size_t{w} * g.dims + d;
        g.solution[at] += step * g.direction[at];
        const float r = g.residual[at] - step * g.product[at];
        g.residual[at] = r;
        measure += double{r} * r * g.inverse_diagonal[w];
    }
    measure = column_sum(measure);
    const float keep = before > 0 ? static_cast<float>(measure / before) : 0;
    for (uint32_t w = threadIdx.y; w < g.words && inside; w += block_rows) {
        const size_t at = size_t{w} * g.dims + d;
        g.direction[at] = g.residual[at] * g.inverse_diagonal[w] + keep * g.direction[at];
    }
    if (inside && threadIdx.y == 0) g.measure[d] = measure;
}

}  // namespace

void count_together(const LsqShape& shape, const uint8_t* codes, size_t count, uint32_t* together,
                    cudaStream_t stream) {
    const size_t items = count * shape.books;
    launch("count_pairs", count_pairs,
           {static_cast<unsigned>(divide_up(items, size_t{threads})), threads, 0, stream}, shape,
           codes, count, together);
}

void fit_words(const Context& context, cudaStream_t stream, const Blas& blas, const WordFit& fit) {
    const size_t words = fit.shape.words(), dims = fit.shape.dims;
    Buffer<float> matrix(context.memory, words * words);
    Buffer<float> inverse_diagonal(context.memory, words);
    Buffer<float> product(context.memory, words * dims), residual(context.memory, words * dims);
    Buffer<float> direction(context.memory, words * dims);
    Buffer<double> measure(context.memory, dims), first(context.memory, dims);
    const FinishStream finish(stream);
    launch("make_matrix", make_matrix,
           {static_cast<unsigned>(divide_up(words * words, size_t{threads})), threads, 0, stream},
           fit.together, words, static_cast<float>(lsq_fit_weight(fit.rows)), matrix.data(),
           inverse_diagonal.data());
    const Gradients gradients{static_cast<uint32_t>(words),
                              static_cast<uint32_t>(dims),
                              inverse_diagonal.data(),
                              product.data(),
                              fit.words,
                              residual.data(),
                              direction.data(),
                              measure.data(),
                              first.data()};
    // cuBLAS is column-major: (dims)(words) times a symmetric (words)(words).
    const auto multiply_by = [&](const float* by) {
        multiply(blas, stream,
                 {CUBLAS_OP_N, CUBLAS_OP_N, dims, words, words, by, dims, matrix.data(), words,
                  product.data()});
    };
    const dim3 block(block_dims, block_rows);
    const dim3 grid(static_cast<unsigned>(divide_up(dims, size_t{block_dims})));
    multiply_by(fit.words);
    begin<<<grid, block, 0, stream>>>(gradients, fit.sums, fit.factor);
    check_launch("begin");
    for (int i = 0; i < iterations; ++i) {
        multiply_by(direction.data());
        advance<<<grid, block, 0, stream>>>(gradients);
        check_launch("advance");
    }
    check(cudaStreamSynchronize(stream), "fit_words");
}

}  // namespace pgwarp::gpu
