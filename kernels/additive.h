// Local search quantization (lsq.h) as an index uses it: residuals of lists, codebook by rows.
#pragma once

#include "kernels/executor.h"
#include "kernels/lsq.h"
#include "kernels/workers.h"

#include <memory>
#include <vector>

namespace pgwarp {

inline LsqShape lsq_shape(const QuantizerShape& shape) {
    return {shape.dims, shape.m};
}

// Encodes rows, usually with one model: the tables are kept while the codebook is the same.
class AdditiveEncoder {
  public:
    // As encode() in product_quantizer.h.
    void encode(Workers& workers, const Quantizer& quantizer, const Encoding& encoding);

  private:
    std::vector<float> codebook_;
    std::unique_ptr<LsqEncoder> encoder_;
};

// |r'|^2 + 2 <c, r'> of a code, `decoded` being (dims) of scratch; 0 for inner product.
float additive_offset(const LsqShape& shape, Metric metric, const float* words,
                      const float* centroid, const uint8_t* code, float* decoded);

// See Executor::additive_step().
double lsq_step(Workers& workers, const AdditiveStep& step, const float* rows, size_t count);

// The start of a training, from a product quantizer of rotated residuals, (dims)(256): its words,
// rotated back by the matrix, (dims)(dims). Codes of the product quantizer are valid for the
// result.
void additive_start(const QuantizerShape& shape, const float* matrix, const float* product_codebook,
                    float* codebook);

}  // namespace pgwarp
