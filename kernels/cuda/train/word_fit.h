// Fits the words of an additive quantizer to codes, on the device; lsq_solve() does the same with
// LAPACK. Conjugate gradients solve one system of equations per dimension, all with the same
// matrix, starting from the current words. These are near the solution, and the next search for
// codes does not need higher precision.
#pragma once

#include "kernels/cuda/base/blas.h"
#include "kernels/cuda/base/context.h"
#include "kernels/cuda/base/stream.h"
#include "kernels/lsq.h"

namespace pgwarp::gpu {

// Adds a chunk's rows to the co-occurrence counts of words, (words)(words).
void count_together(const LsqShape& shape, const uint8_t* codes, size_t count, uint32_t* together,
                    cudaStream_t stream);

struct WordFit {
    LsqShape shape;
    size_t rows;
    const uint32_t* together;
    const unsigned long long* sums;  // (books)(256)(dims), of rows, times `factor`: see sums.h
    double factor;
    float* words;  // (books)(256)(dims): in: the current words; out: the fitted ones
};
// Needs about words * (words + 4 dims) floats. Waits for the stream.
void fit_words(const Context& context, cudaStream_t stream, const Blas& blas, const WordFit& fit);

}  // namespace pgwarp::gpu
