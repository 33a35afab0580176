#include "kernels/common/linear_algebra.h"
#include "kernels/lsq.h"
#include "kernels/product_quantizer.h"
#include "kernels/rotation.h"

#include <algorithm>

namespace pgwarp {

namespace {

constexpr int start_iterations = 16;
constexpr size_t start_rows = 20480;

}  // namespace

void lsq_start(Workers& workers, const LsqShape& shape, const float* rows, size_t count,
               uint64_t seed, float* words, uint8_t* codes) {
    const uint32_t dims = shape.dims;
    const QuantizerShape product{dims, 1, shape.books, Metric::l2};
    std::vector<float> matrix(size_t{dims} * dims), rotated(count * dims);
    std::vector<float> codebook(size_t{dims} * codewords);
    // The rotation is trained on some of the rows.
    const size_t some = std::min(count, start_rows);
    rotation_start(workers, product, rows, some, dims, matrix.data());
    rotated_codebook_start(workers, product, {dims, dims, matrix.data()}, rows, some, seed,
                           codebook.data());
    for (int i = 0; i < start_iterations; ++i)
        rotation_step(workers, product, rows, some, dims, matrix.data(), codebook.data());
    rotate(workers, {dims, dims, matrix.data()}, rows, count, rotated.data());
    std::vector<float> moved = codebook;
    codebook_step(workers, product, rotated.data(), count, moved.data(), codes);
    std::fill_n(words, shape.words() * dims, 0.0f);
    for (uint32_t k = 0; k < shape.books; ++k)
        for (uint32_t p = product.piece_begin(k); p < product.piece_begin(k + 1); ++p)
            for (uint32_t c = 0; c < codewords; ++c) {
                const float part = codebook[size_t{p} * codewords + c];
                const float* direction = matrix.data() + size_t{p} * dims;
                float* word = words + (size_t{k} * codewords + c) * dims;
                for (uint32_t d = 0; d < dims; ++d) word[d] += part * direction[d];
            }
}

// With B the indicator matrix of the codes: B^T B, which counts how often two words occur together,
// and B^T X. The lower triangle of B^T B is enough.
void lsq_fit(Workers& workers, const LsqShape& shape, const float* rows, size_t count,
             const uint8_t* codes, float* words) {
    const size_t n = shape.words(), dims = shape.dims;
    std::vector<double> gram(n * n), sums(n * dims);
    workers.run(shape.books, [&](size_t k, int) {
        for (size_t i = 0; i < count; ++i) {
            const uint8_t* code = codes + i * shape.books;
            const size_t w = k * codewords + code[k];
            for (size_t l = 0; l <= k; ++l) gram[w * n + l * codewords + code[l]] += 1;
            for (size_t d = 0; d < dims; ++d) sums[w * dims + d] += rows[i * dims + d];
        }
    });
    const double weight = lsq_fit_weight(count);
    for (size_t w = 0; w < n; ++w) gram[w * n + w] += weight;
    // Column-major for LAPACK: (n) for each dimension.
    std::vector<double> solved(n * dims);
    for (size_t w = 0; w < n; ++w)
        for (size_t d = 0; d < dims; ++d) solved[d * n + w] = sums[w * dims + d];
    // As a task, so that Workers polls for interrupts before LAPACK, which cannot be interrupted.
    workers.run(1, [&](size_t, int) {
        solve_positive(gram.data(), static_cast<uint32_t>(n), solved.data(), shape.dims);
    });
    for (size_t w = 0; w < n; ++w)
        for (size_t d = 0; d < dims; ++d)
            words[w * dims + d] = static_cast<float>(solved[d * n + w]);
}

}  // namespace pgwarp
