// Compares quantizers at one code size on a sample: the time to train and to encode, the error, and
// how often an exhaustive search over the codes alone finds the true nearest row among the first 1,
// 10 and 100.
#pragma once

#include "kernels/common.h"
#include "kernels/executor.h"
#include "kernels/workers.h"

namespace pgwarp {

enum class CodeKind {
    pq,
    opq,
    lsq,           // as many codebooks as bytes; the norm is stored beside the code, as in an index
    lsq_with_norm  // one codebook fewer, and a byte for the norm
};

struct CodeTrial {
    CodeKind kind;
    uint32_t bits;         // of a sub-quantizer
    uint32_t bytes;        // of a code; lsq_with_norm needs at least two
    uint32_t rounds = 16;  // of the search for codes, with lsq
};

// Borrows its memory. Vectors are normalised for cosine.
struct CodeSample {
    uint32_t dims;
    Metric metric;
    const float* training;  // (training_count)(dims)
    size_t training_count;
    const float* rows;  // (count)(dims)
    size_t count;
    const float* queries;  // (query_count)(dims)
    size_t query_count;
    const uint32_t* nearest;  // (query_count): the true nearest of the rows
};

struct CodeQuality {
    double training_seconds;
    double rows_per_second;  // encoded, by all threads
    double error;            // mean squared, as a share of the rows' mean |x - mean|^2
    double recall[3];        // at 1, 10, 100
};

// The executor trains additive codes and searches for them; the workers do everything else.
CodeQuality measure_codes(Workers& workers, Executor& executor, const CodeTrial& trial,
                          const CodeSample& sample, uint64_t seed);

}  // namespace pgwarp
