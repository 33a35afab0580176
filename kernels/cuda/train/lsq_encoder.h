// Local search quantization on the device: codes of residuals. See kernels/lsq.h for the model and
// the search, and lsq_scale.h for the arithmetic, which CPU and device share.
#pragma once

#include "kernels/cuda/products/assign.h"
#include "kernels/lsq.h"
#include "kernels/common/lsq_scale.h"

namespace pgwarp::gpu {

// Searches with one set of codebooks, on one stream.
class LsqEncoder {
  public:
    // `words`, (books)(256)(dims), are in host memory; 32 books at most. Waits for the stream.
    LsqEncoder(const Context& context, cudaStream_t stream, const Blas& blas, const LsqShape& shape,
               const float* words);

    // The most rows that one call of encode() should have.
    size_t chunk_rows() const;

    // All on the device: rows (count)(dims), codes (count)(books), errors (count), or null.
    // `improve`: the search starts from `codes`, else from a greedy code.
    void encode(const LsqSearch& search, const float* rows, size_t count, bool improve,
                uint8_t* codes, float* errors);

    const LsqShape& shape() const { return shape_; }
    const float* words() const { return words_.data(); }  // on the device

  private:
    void make_pairs();

    const Context& context_;
    cudaStream_t stream_;
    const Blas& blas_;
    LsqShape shape_;
    Buffer<float> words_;
    CentroidMatrix matrix_;
    // (books)(books)(256)(256): [k][l][b][c], as on the CPU.
    Buffer<uint16_t> pairs_;
    LsqScale scale_;
    ProductTile tile_;
};

// offsets[i] = |r'|^2 + 2 <c, r'>, r' the sum of a row's words, c its list's centroid; 0 for inner
// products.
struct SumOffsets {
    LsqShape shape;
    Metric metric;
    const float* words;
    const float* centroids;  // (lists)(dims)
    const uint32_t* lists;   // (count)
    const uint8_t* codes;    // (count)(books)
    size_t count;
    float* offsets;  // (count)
};
void sum_offsets(const SumOffsets& arguments, cudaStream_t stream);

}  // namespace pgwarp::gpu
