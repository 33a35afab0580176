// Sums of rows by cluster, for the update of k-means.
//
// Sums are fixed-point: 64-bit integers, each value scaled by one power of two. Integer sums do not
// depend on the order in which the device adds them, so that training is reproducible.
#pragma once

#include "kernels/cuda/base/context.h"
#include "kernels/cuda/lists/model.h"

namespace pgwarp::gpu {

// The largest magnitude among `count` floats on the device. Waits for the stream.
float largest_magnitude(const Context& context, const float* values, size_t count,
                        cudaStream_t stream);

// The power of two for sums of up to `rows` values of magnitude up to `largest`.
double fixed_point_factor(float largest, size_t rows);

// Errors are sums of doubles, one per block, so that their order is fixed.
inline constexpr unsigned error_blocks = 1024;

// Adds a chunk's rows to sums, (clusters)(dims), and counts, (clusters), and their squared
// distances to errors, (error_blocks).
struct RowSums {
    const float* rows;        // (count)(dims)
    const uint32_t* nearest;  // (count)
    const float* centroids;   // (clusters)(dims)
    size_t count;
    uint32_t dims;
    double factor;
    unsigned long long* sums;
    uint32_t* counts;
    double* errors;
};
void add_rows(const RowSums& sums, cudaStream_t stream);

// The same for residuals and codes: sums (dims)(256), counts (m)(256), errors of the codebook.
struct CodeSums {
    const float* residuals;  // (count)(dims)
    const uint8_t* codes;    // (count)(m)
    size_t count;
    double factor;
    unsigned long long* sums;
    uint32_t* counts;
    double* errors;
};
void add_codes(const DeviceModel& model, const CodeSums& sums, cudaStream_t stream);

// The same for residuals and the codes of an additive quantizer, whose words have all dimensions:
// sums (books)(256)(dims).
struct WordSums {
    const float* residuals;  // (count)(dims)
    const uint8_t* codes;    // (count)(books)
    size_t count;
    uint32_t dims;
    uint32_t books;
    double factor;
    unsigned long long* sums;
};
void add_words(const WordSums& sums, cudaStream_t stream);

// means[c * dims + d] from sums and counts; a cluster without members keeps its mean.
void row_means(const unsigned long long* sums, const uint32_t* counts, uint32_t clusters,
               uint32_t dims, double factor, float* means, cudaStream_t stream);
// codebook[d * 256 + c] likewise.
void code_means(const DeviceModel& model, const unsigned long long* sums, const uint32_t* counts,
                double factor, float* codebook, cudaStream_t stream);

// Adds the squared differences of two arrays to errors, (error_blocks); `b` may be null: zeros.
void add_squares(const float* a, const float* b, size_t count, double* errors, cudaStream_t stream);

// rows, (count)(dims): what codes, (count)(m), stand for.
void decode_codes(const DeviceModel& model, const uint8_t* codes, size_t count, float* rows,
                  cudaStream_t stream);

// rows[i] -= centroids[nearest[i]]
void subtract_nearest(float* rows, size_t count, uint32_t dims, const float* centroids,
                      const uint32_t* nearest, cudaStream_t stream);

// to[i] = rows[indices[i]]
void gather_rows(const float* rows, uint32_t dims, const uint32_t* indices, size_t count, float* to,
                 cudaStream_t stream);

}  // namespace pgwarp::gpu
