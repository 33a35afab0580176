// Sub-quantizers of four bits, two in a byte: their sixteen codewords, and finding the nearest. See
// quantizer.h for the model. `words` are always (dims)(16): row d is dimension d of the codewords
// of its sub-quantizer.
#pragma once

#include "kernels/common.h"
#include "kernels/quantizer.h"

#include <vector>

namespace pgwarp {

inline constexpr uint32_t nibble_words = 16;

// Makes the codebook (dims)(256) of all pairs of these words, and extracts the words from it.
void pair_nibble_words(const QuantizerShape& shape, const float* words, float* codebook) noexcept;
void nibble_words_of(const QuantizerShape& shape, const float* codebook, float* words) noexcept;

// |w|^2 / 2 of the codewords of one sub-quantizer, (part_dims)(16).
void nibble_half_norms(const float* words, uint32_t part_dims, float* half_norms) noexcept;

// The nearest codeword; ties go to the lowest number.
uint8_t nearest_nibble(const float* part, uint32_t part_dims, const float* words,
                       const float* half_norms) noexcept;

// The code, (m), of a residual; returns its offset, |r'|^2 + 2 <c, r'>.
float encode_nibbles(const QuantizerShape& shape, const float* words, const float* residual,
                     const float* centroid, uint8_t* code) noexcept;

// Many residuals, with one codebook.
class NibbleEncoder {
  public:
    NibbleEncoder(const QuantizerShape& shape, const float* codebook);
    void encode(const float* residual, uint8_t* code) const noexcept;

  private:
    QuantizerShape shape_;
    std::vector<float> words_;
    std::vector<float> half_norms_;  // (parts)(16)
};

}  // namespace pgwarp
