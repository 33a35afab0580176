// Fitting the words of an additive quantizer to codes, on the device: what lsq_solve() does with
// LAPACK. The equations, one set a dimension with one matrix for all, are solved by conjugate
// gradients from the words there are: these are near the solution, and need not be nearer than the
// next search for codes can tell.
#pragma once

#include "kernels/cuda/base/context.h"
#include "kernels/cuda/base/stream.h"
#include "kernels/lsq.h"

namespace pgwarp::gpu {

// How often two words go together, (words)(words): adds the rows of a chunk.
void count_together(const LsqShape& shape, const uint8_t* codes, size_t count, uint32_t* together,
                    cudaStream_t stream);

struct WordFit {
    LsqShape shape;
    size_t rows;
    const uint32_t* together;
    const unsigned long long* sums;  // (books)(256)(dims), of rows, times `factor`: see sums.h
    double factor;
    float* words;  // (books)(256)(dims): the words before, then those that fit
};
// Needs about words * (words + 4 dims) floats. Waits for the stream.
void fit_words(const Context& context, cudaStream_t stream, const Blas& blas, const WordFit& fit);

}  // namespace pgwarp::gpu
