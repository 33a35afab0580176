// Local search quantization (lsq.h) as an index uses it: residuals of lists, codebook by rows.
#pragma once

#include "kernels/executor.h"
#include "kernels/lsq.h"
#include "kernels/workers.h"

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

namespace pgwarp {

inline LsqShape lsq_shape(const QuantizerShape& shape) {
    return {shape.dims, shape.m};
}

// The LsqEncoder, of the CPU or of a device, for a quantizer's codebook. Kept while the codebook
// stays the same, because its tables take long to make.
template <typename Encoder>
class KeptLsqEncoder {
  public:
    // make(shape, words) returns a std::unique_ptr<Encoder>. On a throw none is kept.
    template <typename Make>
    Encoder& get(const Quantizer& quantizer, Make&& make) {
        const LsqShape shape = lsq_shape(quantizer.shape);
        const size_t floats = size_t{quantizer.shape.codebook_rows()} * codewords;
        if (encoder_ && encoder_->shape().dims == shape.dims &&
            encoder_->shape().books == shape.books &&
            std::equal(codebook_.begin(), codebook_.end(), quantizer.codebook))
            return *encoder_;
        encoder_.reset();
        std::vector<float> words(floats);
        words_of_codebook(shape, quantizer.codebook, words.data());
        std::unique_ptr<Encoder> made = make(shape, words.data());
        codebook_.assign(quantizer.codebook, quantizer.codebook + floats);
        encoder_ = std::move(made);
        return *encoder_;
    }

  private:
    std::vector<float> codebook_;
    std::unique_ptr<Encoder> encoder_;
};

// Encodes rows, usually with one model.
class AdditiveEncoder {
  public:
    // As encode() in product_quantizer.h.
    void encode(Workers& workers, const Quantizer& quantizer, const Encoding& encoding);

  private:
    KeptLsqEncoder<LsqEncoder> kept_;
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
